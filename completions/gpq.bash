# bash completion of gpq. Install: gpq completion bash > ~/.local/share/bash-completion/completions/gpq
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
