//! Whether an entrypoint is a script of another language than Python: a shell's, most often. Pure.

use std::ffi::OsStr;
use std::fmt;
use std::path::Path;

/// Interpreters whose scripts Python cannot run.
const INTERPRETERS: [&str; 16] = [
    "sh", "bash", "dash", "zsh", "ksh", "ash", "fish", "csh", "tcsh", "perl", "ruby", "node", "lua", "julia",
    "php", "Rscript",
];

/// A script of another language that cannot be executed as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OtherLanguage {
    /// The program that runs such scripts.
    interpreter: String,
    /// Whether the script's first line names it.
    has_first_line: bool,
}

impl OtherLanguage {
    /// What to do about it.
    pub(super) fn hint(&self, entrypoint: &str) -> String {
        let Self { interpreter, has_first_line } = self;
        let front = format!("put `{interpreter}` in front: `rankrun {interpreter} {entrypoint}`");
        match has_first_line {
            true => format!("`chmod +x {entrypoint}`, or {front}"),
            false => front,
        }
    }
}

impl fmt::Display for OtherLanguage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.has_first_line {
            true => write!(f, "is a script for `{}` and has no run permission", self.interpreter),
            false => f.write_str("is a shell script without a first line such as `#!/bin/sh`"),
        }
    }
}

/// What else than Python runs a file that begins with these bytes, where it has no run permission or no first line.
#[must_use]
pub(super) fn other_language(path: &Path, first_bytes: &[u8]) -> Option<OtherLanguage> {
    let mut lines = first_bytes.split(|byte| *byte == b'\n');
    let first = lines.next().unwrap_or_default();
    let line = first.strip_prefix(b"#!");
    let code = if line.is_some() { lines.next().unwrap_or_default() } else { first };
    // A file that is valid in both languages has Python's string there (`'''exec' python "$0" "$@"`).
    if code.starts_with(b"'") || code.starts_with(b"\"") {
        return None;
    }
    let interpreter = match line {
        Some(line) => interpreter_of(&String::from_utf8_lossy(line))?,
        None => {
            path.extension().and_then(OsStr::to_str).filter(|name| matches!(*name, "sh" | "bash"))?.to_owned()
        }
    };
    let has_first_line = line.is_some();
    INTERPRETERS.contains(&&*interpreter).then_some(OtherLanguage { interpreter, has_first_line })
}

/// The program's name in a first line, behind `env` and its options.
fn interpreter_of(line: &str) -> Option<String> {
    let base = |word: &str| word.rsplit('/').next().unwrap_or_default().to_owned();
    let mut words = line.split_ascii_whitespace();
    let program = base(words.next()?);
    if program != "env" {
        return Some(program);
    }
    let words = words.map(|word| word.strip_prefix("-S").unwrap_or(word));
    words.into_iter().find(|word| !word.is_empty() && !word.starts_with('-') && !word.contains('=')).map(base)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn language(path: &str, text: &str) -> Option<String> {
        other_language(Path::new(path), text.as_bytes()).map(|other| other.interpreter)
    }

    #[test]
    fn first_line_names_the_interpreter() {
        for (line, interpreter) in [
            ("#!/bin/sh", "sh"),
            ("#! /bin/bash -e\r", "bash"),
            ("#!/usr/bin/env zsh", "zsh"),
            ("#!/usr/bin/env -S LANG=C bash -e", "bash"),
            ("#!/usr/bin/env -Sperl -w", "perl"),
        ] {
            assert_eq!(language("x", line).as_deref(), Some(interpreter), "{line}");
            assert_eq!(language("x", &format!("{line}\nset -e\n")).as_deref(), Some(interpreter), "{line}");
        }
    }

    #[test]
    fn python_and_unknown_programs_have_no_other_language() {
        for text in [
            "",
            "import torch",
            "#!",
            "#!/usr/bin/env",
            "#!/usr/bin/python3\n",
            "#!/usr/bin/env -S uv run --script\n",
            "#!/usr/bin/env rankrun\n",
            "#!/bin/sh\n'''exec' /long/python \"$0\" \"$@\"\n' '''\n",
            "#!/bin/sh\n\"exec\" \"python\" \"$0\"\n",
        ] {
            assert_eq!(language("x", text), None, "{text}");
        }
    }

    #[test]
    fn shell_script_is_detected_by_extension() {
        assert_eq!(language("a/run.sh", "set -e\n").as_deref(), Some("sh"));
        assert_eq!(language("run.bash", "").as_deref(), Some("bash"));
        assert_eq!(language("run.sh", "#!/usr/bin/env python3\n"), None);
        assert_eq!(language("run.sh", "\"\"\"A module.\"\"\"\n"), None);
        assert_eq!(language("sh", "text"), None);
    }
}
