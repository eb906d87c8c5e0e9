"""The completion scripts, one per shell. They know nothing themselves and ask `gpq __complete`, so
an upgrade works at the next TAB.

Exit status 9 of `gpq __complete` means file names. 10 means that the part after `--` is completed
as a line of its own.
"""

# turn completion on for good. `gpq completion --help` and the scripts show the same lines
LINES = {
    "bash": "echo 'source <(gpq completion bash 2>/dev/null)' >> ~/.bashrc",
    "zsh": "echo 'source <(gpq completion zsh 2>/dev/null)' >> ~/.zshrc",
    "fish": (
        "mkdir -p ~/.config/fish/completions; gpq completion fish >"
        " ~/.config/fish/completions/gpq.fish"
    ),
}

BASH = (
    rf"""# bash completion of gpq. To turn it on in every new shell (bash-completion is not needed):
#   {LINES["bash"]}
# Only in this shell: source <(gpq completion bash)
"""
    + r"""_gpq() {
    local how=bash gpq=gpq status row
    COMPREPLY=()
    [[ ${1-} == */* ]] && gpq=${1/#\~\//$HOME/}
    case ${COMP_TYPE-} in
        # several candidates are shown, and none is inserted
        33 | 63 | 64) how=bash:${COLUMNS:-80} ;;
    esac
    row=$(command "$gpq" __complete "$how" "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    status=$?
    if [[ $status -eq 9 ]]; then
        compopt -o default 2>/dev/null
    elif [[ $status -eq 10 ]]; then
        _gpq_command
    else
        while IFS= read -r row; do
            [[ -n $row ]] && COMPREPLY+=("$row")
        done <<<"$row"
    fi
}
_gpq_command() {
    local at=1 row
    while [[ ${COMP_WORDS[at]} != -- ]]; do ((at++)); done
    ((at++))
    if declare -F _comp_command_offset >/dev/null; then
        _comp_command_offset "$at"
    elif declare -F _command_offset >/dev/null; then
        _command_offset "$at"
    elif [[ $COMP_CWORD -eq $at ]]; then
        while IFS= read -r row; do
            COMPREPLY+=("$row")
        done < <(compgen -c -- "${COMP_WORDS[at]}" | LC_ALL=C sort -u)
        compopt -o filenames 2>/dev/null
    else
        compopt -o default 2>/dev/null
    fi
}
complete -o nosort -F _gpq gpq 2>/dev/null || complete -F _gpq gpq
"""
)

ZSH = (
    rf"""#compdef gpq
# zsh completion of gpq. To turn it on in every new shell (after any line with compinit, which would
# turn it off again):
#   {LINES["zsh"]}
# Only in this shell: source <(gpq completion zsh). As a file: gpq completion zsh > _gpq, in a
# folder of $fpath.
"""
    + r"""_gpq() {
    local answer gpq=gpq
    local -a found shown expl
    local -i at
    [[ $words[1] == */* ]] && gpq=${(Q)words[1]/#\~\//$HOME/}
    answer=$(command $gpq __complete zsh:$COLUMNS "${(@Q)words[2,CURRENT]}" 2>/dev/null)
    at=$?
    if (( at == 9 )); then
        _files
    elif (( at == 10 )); then
        at=${words[(i)--]}
        shift $at words
        (( CURRENT -= at ))
        _normal -p gpq
    elif [[ -n $answer ]]; then
        found=("${(@)${(@f)answer}%%$'\t'*}")
        shown=("${(@)${(@f)answer}#*$'\t'}")
        if [[ "$found" == "$shown" ]]; then
            _wanted -V gpq expl gpq compadd -a found
        else
            _wanted -V gpq expl gpq compadd -l -d shown -a found
        fi
    fi
}
if [[ $funcstack[1] == _gpq ]]; then
    _gpq "$@"
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }
    (( $+functions[compdef] )) && compdef _gpq gpq
fi
"""
)

FISH = (
    rf"""# fish completion of gpq, in every new shell:
#   {LINES["fish"]}
# In this shell only: gpq completion fish | source
"""
    + r"""function __gpq_complete
    set -l before (commandline -opc)
    set -l current (commandline -ct)
    set -l gpq gpq
    string match -q '*/*' -- $before[1]; and set gpq (string replace -r '^~/' $HOME/ -- $before[1])
    set -l found (command $gpq __complete fish $before[2..-1] "$current" 2>/dev/null)
    switch $status
        case 9
            __fish_complete_path "$current"
        case 10
            set -e before[1..(contains -i -- -- $before)]
            if set -q before[1]
                set current (string join ' ' -- (string escape -- $before) "$current")
            end
            complete -C "$current"
        case '*'
            printf '%s\n' $found
    end
end
complete -c gpq -f -k -a '(__gpq_complete)'
"""
)

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
