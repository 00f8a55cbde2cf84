//! `--print-completion`: shell scripts made from the option tables. They need nothing but the shell.

use std::ffi::OsStr;

use super::option::{Kind, LaunchOption, options};
use clap::Arg;

use crate::spec::CliFlavor;

/// What `--print-completion` takes.
pub(super) const SHELLS: &[&str] = &["bash", "zsh", "tcsh"];
/// What may stand first under our own name.
const SUBCOMMANDS: [&str; 10] =
    ["run", "explain", "devices", "topo", "gc", "ls", "status", "stop", "restart", "shim"];

/// A shell that we write scripts for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shell {
    Bash,
    Zsh,
    Tcsh,
}

impl Shell {
    /// The one of this name.
    pub(super) fn named(name: &OsStr) -> Option<Self> {
        match name.to_str()? {
            "bash" => Some(Self::Bash),
            "zsh" => Some(Self::Zsh),
            "tcsh" => Some(Self::Tcsh),
            _ => None,
        }
    }
}

/// The script for the command of this name.
pub(super) fn script(cli_flavor: CliFlavor, shell: Shell) -> String {
    let command = Command::of(cli_flavor);
    match shell {
        Shell::Bash => bash(&command),
        Shell::Zsh => zsh(&command),
        Shell::Tcsh => tcsh(&command),
    }
}

/// What a script is made for.
struct Command {
    name: &'static str,
    /// Words that may stand first.
    first: &'static [&'static str],
    rows: Vec<&'static Arg>,
}

impl Command {
    fn of(cli_flavor: CliFlavor) -> Self {
        let (name, first) = match cli_flavor {
            CliFlavor::Rankrun => ("rankrun", SUBCOMMANDS.as_slice()),
            CliFlavor::Torchrun => ("torchrun", [].as_slice()),
        };
        Self { name, first, rows: options(cli_flavor).collect() }
    }

    /// The `at`-th spelling of each option, where it has so many; the first is the one with hyphens.
    fn spellings(&self, at: usize) -> Vec<String> {
        self.rows.iter().filter_map(|row| row.spellings().get(at).cloned()).collect()
    }

    /// Every name of every option that takes a value.
    fn with_value(&self) -> Vec<String> {
        self.rows.iter().filter(|row| row.kind() != Kind::Flag).flat_map(|row| names(row)).collect()
    }

    /// The options whose values are known, with these.
    fn with_words(&self) -> impl Iterator<Item = (&'static Arg, Vec<&'static str>)> {
        self.rows.iter().filter_map(|row| Some((*row, words(row)?)))
    }
}

/// The short name and both spellings.
fn names(row: &Arg) -> Vec<String> {
    let short = row.get_short().map(|letter| format!("-{letter}"));
    short.into_iter().chain(row.spellings()).collect()
}

/// The values that can be offered: the choices, or the lower-case words of a list such as `N|cpu|auto`.
fn words(row: &'static Arg) -> Option<Vec<&'static str>> {
    let is_word = |word: &&str| word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    match row.kind() {
        Kind::Choice(choices) => Some(choices.to_vec()),
        _ if row.value_name().contains('|') => {
            let words: Vec<&str> = row.value_name().split('|').filter(is_word).collect();
            (!words.is_empty()).then_some(words)
        }
        _ => None,
    }
}

/// Options of the launcher stand before the entrypoint, and everything behind it is its own: there bash completes
/// file names.
fn bash(command: &Command) -> String {
    let name = command.name;
    let cases: String = command
        .with_words()
        .map(|(row, words)| format!("        {}) words='{}' ;;\n", names(row).join(" | "), words.join(" ")))
        .collect();
    let first = command.first.join(" ");
    format!(
        r#"# bash completion of {name}: source this file, or put it into ~/.local/share/bash-completion/completions/{name}
_{name}() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} option='' words='' at word
    COMPREPLY=()
    for ((at = 1; at < COMP_CWORD; at++)); do
        word=${{COMP_WORDS[at]}}
        # bash makes a word of its own of the = in --option=value.
        if [[ $word == '=' && $option == '' ]]; then
            option=${{COMP_WORDS[at - 1]}}
            continue
        fi
        if [[ $option != '' ]]; then
            [[ $word == '=' ]] || option=''
            continue
        fi
        case $word in
        {with_value})
            option=$word
            ;;
        -?*) ;;
        *)
            # The entrypoint: what is behind it is its own.
            [[ $at == 1 && ' {first} ' == *" $word "* ]] || return 0
            ;;
        esac
    done
    if [[ $current == '=' ]]; then
        option=${{COMP_WORDS[COMP_CWORD - 1]}}
        current=''
    fi
    if [[ $option != '' ]]; then
        case $option in
{cases}        esac
    elif [[ $current == -*_* ]]; then
        words='{underscores}'
    elif [[ $current == -* ]]; then
        words='{hyphens}'
    elif [[ $COMP_CWORD == 1 ]]; then
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -W '{first}' -- "$current"; compgen -f -- "$current")
        return 0
    fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o bashdefault -o default -F _{name} {name}
"#,
        with_value = command.with_value().join(" | "),
        underscores = command.spellings(1).join(" "),
        hyphens = command.spellings(0).join(" "),
    )
}

/// A word that stands first is taken away, and the rest is completed as if it were not there.
fn zsh(command: &Command) -> String {
    let name = command.name;
    let options: String =
        command.rows.iter().map(|row| format!("        {} \\\n", zsh_option(row))).collect();
    let (shift, first) = match command.first {
        [] => (String::new(), "'(-)1:entrypoint:_files'".to_owned()),
        words => (
            format!(
                "    if (( CURRENT > 2 )) && [[ $words[2] == ({}) ]]; then\n        shift words\n        \
                 (( CURRENT -= 1 ))\n    fi\n",
                words.join("|")
            ),
            format!(
                "'(-)1:entrypoint: _alternative \"words\\:subcommand\\:({})\" \"files\\:file\\:_files\"'",
                words.join(" ")
            ),
        ),
    };
    format!(
        r#"#compdef {name}
# zsh completion of {name}: put this file as _{name} into a folder of $fpath, or source it
_{name}() {{
{shift}    _arguments -s \
{options}        {first} \
        '*::arguments:_files'
}}
if [[ $funcstack[1] == _{name} ]]; then
    _{name} "$@"
else
    compdef _{name} {name}
fi
"#
    )
}

/// `'(-r --redirects)'{-r,--redirects=}'[help]:value:action'`
fn zsh_option(row: &'static Arg) -> String {
    let help = row.get_help().map(ToString::to_string).unwrap_or_default();
    let help = help
        .split(" [default")
        .next()
        .unwrap_or_default()
        .replace('\'', r"'\''")
        .replace('[', r"\[")
        .replace(']', r"\]");
    let (equals, value) = match (row.kind(), words(row)) {
        (Kind::Flag, _) => ("", String::new()),
        (_, Some(words)) => ("=", format!(":{}:({})", row.long_name(), words.join(" "))),
        (Kind::Text, None) => ("=", format!(":{}:_files", row.long_name())),
        // A number: a blank offers nothing.
        (_, None) => ("=", format!(":{}: ", row.long_name())),
    };
    let long = format!("--{}{equals}", row.long_name());
    match row.get_short() {
        Some(short) => format!("'(-{short} --{})'{{-{short},{long}}}'[{help}]{value}'", row.long_name()),
        None => format!("'{long}[{help}]{value}'"),
    }
}

fn tcsh(command: &Command) -> String {
    let name = command.name;
    let values: String = command
        .with_words()
        .flat_map(|(row, words)| {
            let words = words.join(" ");
            names(row).into_iter().map(move |name| format!(" 'n/{name}/({words})/'"))
        })
        .collect();
    let long =
        command.spellings(0).iter().map(|name| name.trim_start_matches('-').to_owned()).collect::<Vec<_>>();
    let first = match command.first {
        [] => String::new(),
        words => format!(" 'p@1@`echo {}; ls`@'", words.join(" ")),
    };
    format!(
        "# tcsh completion of {name}: source this file\ncomplete {name}{values} 'c/--/({})/'{first} 'p/*/f/'\n",
        long.join(" ")
    )
}

#[cfg(test)]
mod tests;
