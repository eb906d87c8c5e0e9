# bash completion of gpq. To turn it on in every new shell (bash-completion is not needed):
#   echo 'source <(gpq completion bash 2>/dev/null)' >> ~/.bashrc
# Only in this shell: source <(gpq completion bash)
_gpq() {
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
