#compdef gpq
# zsh completion of gpq. To turn it on in every new shell (after any line with compinit, which would
# turn it off again):
#   echo 'source <(gpq completion zsh 2>/dev/null)' >> ~/.zshrc
# Only in this shell: source <(gpq completion zsh). As a file: gpq completion zsh > _gpq, in a
# folder of $fpath.
_gpq() {
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
