# Turn completion on for good, as the page, the help and the scripts show it.
LINES = {
    "bash": "echo 'source <(gpq completion bash 2>/dev/null)' >> ~/.bashrc",
    "zsh": "echo 'source <(gpq completion zsh 2>/dev/null)' >> ~/.zshrc",
    "fish": "mkdir -p ~/.config/fish/completions; gpq completion fish > ~/.config/fish/completions/gpq.fish",
}
