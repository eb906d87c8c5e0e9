"""The completion scripts, one a shell. They know nothing: `gpq __complete` answers, so that an upgrade reaches the next TAB.

Exit status 9 of `gpq __complete` means: file names, please.
"""

BASH = r"""# bash completion of gpq. Install: gpq completion bash > ~/.local/share/bash-completion/completions/gpq
_gpq() {
    local IFS=$'\n' status word
    COMPREPLY=()
    word=$(command gpq __complete bash "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    status=$?
    if [[ $status -eq 9 ]]; then
        compopt -o default 2>/dev/null
        return
    fi
    while read -r word; do
        [[ -n $word ]] && COMPREPLY+=("$word")
    done <<<"$word"
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null
}
complete -F _gpq gpq
"""

ZSH = r"""#compdef gpq
# zsh completion of gpq. Install: gpq completion zsh > a folder of $fpath, as _gpq; or: source <(gpq completion zsh)
_gpq() {
    local -a found
    local answer
    answer=$(command gpq __complete zsh "${(@)words[2,CURRENT]}" 2>/dev/null)
    if (( $? == 9 )); then
        _files
        return
    fi
    found=("${(@f)answer}")
    [[ -n $answer ]] && _describe -V gpq found
}
if [[ $funcstack[1] == _gpq ]]; then
    _gpq "$@"
elif (( $+functions[compdef] )); then
    compdef _gpq gpq
fi
"""

FISH = r"""# fish completion of gpq. Install: gpq completion fish > ~/.config/fish/completions/gpq.fish
function __gpq_complete
    set -l before (commandline -opc)
    set -l current (commandline -ct)
    set -l found (command gpq __complete fish $before[2..-1] "$current" 2>/dev/null)
    if test $status -eq 9
        __fish_complete_path "$current"
        return
    end
    printf '%s\n' $found
end
complete -c gpq -f -k -a '(__gpq_complete)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
