"""``penstock completion bash``: a script that completes commands, options and file names."""

from __future__ import annotations

import argparse
import shlex

EXAMPLE = 'eval "$(penstock completion bash)"'

_SCRIPT = """\
# Completion of penstock for bash; to install: eval "$(penstock completion bash)"
_penstock() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} words=
    case "${{COMP_WORDS[1]}} $previous" in
{choices}
    esac
    if [[ -z $words ]]; then
        if (( COMP_CWORD == 1 )); then
            words={commands}
        elif [[ $word == -* ]]; then
            case ${{COMP_WORDS[1]}} in
{options}
            esac
        fi
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}}
complete -o default -o bashdefault -F _penstock penstock
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash",), help="the shell")


def run(arguments: argparse.Namespace) -> int:
    print(bash_script(), end="")
    return 0


def bash_script() -> str:
    """Return the completion script, made from the parsers of all commands."""
    from penstock.cli import COMMANDS, make_parser

    options, choices = [], []
    for name in COMMANDS:
        parser = make_parser(name)[1]
        actions = [] if parser is None else parser._actions
        shown = [action for action in actions if action.help != argparse.SUPPRESS]
        flags = [flag for action in shown for flag in action.option_strings]
        options.append(f"                {name}) words={shlex.quote(' '.join(flags))} ;;")
        for action in shown:
            if action.choices is None:
                continue
            values = shlex.quote(" ".join(map(str, action.choices)))
            before = action.option_strings or [name]  # the word before the one to complete
            choices += [f'        "{name} {word}") words={values} ;;' for word in before]
    return _SCRIPT.format(
        commands=shlex.quote(" ".join([*COMMANDS, "--help", "--version"])),
        options="\n".join(options),
        choices="\n".join(choices),
    )
