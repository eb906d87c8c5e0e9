#compdef gpq
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
