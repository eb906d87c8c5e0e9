# fish completion of gpq. Install: gpq completion fish > ~/.config/fish/completions/gpq.fish
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
