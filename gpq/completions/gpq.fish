# fish completion of gpq, in every new shell:
#   mkdir -p ~/.config/fish/completions; gpq completion fish > ~/.config/fish/completions/gpq.fish
# In this shell only: gpq completion fish | source
function __gpq_complete
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
