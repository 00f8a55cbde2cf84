//! Whether the first line of a script starts a launcher (`#!/usr/bin/env -S rankrun --nproc-per-node 2`). Pure.
//!
//! The launcher then runs the script itself, with Python: the first line would start the launcher again, on the same
//! script, without end.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The kernel reads no more of a first line (`BINPRM_BUF_SIZE`).
pub(super) const LONGEST_LINE: usize = 256;

const LAUNCHERS: [&str; 2] = ["rankrun", "torchrun"];
/// What `python -m` takes.
const MODULES: [&str; 2] = ["torch.distributed.run", "torch.distributed.launch"];

/// Whether a word of the first line names a launcher. `resolve` finds a program, and follows its links.
///
/// Wrappers (`env`, `nice`, `srun`, `uv run`) have options of their own, so every word may be a command.
pub(super) fn starts_launcher(file: &[u8], resolve: impl Fn(&OsStr) -> Option<PathBuf>) -> bool {
    let Some(text) = file.strip_prefix(b"#!") else { return false };
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let words = || line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).map(unwrap_word);
    let before = std::iter::once(&b""[..]).chain(words());
    // `uv run --with rankrun python` names a package.
    let commands = words().zip(before).filter(|(word, before)| *before != b"--with" && !is_other(word));
    commands.map(|(word, _)| OsStr::from_bytes(word)).any(|word| {
        is_module(word)
            || is_launcher(Path::new(word))
            || resolve(word).is_some_and(|program| is_launcher(&program))
    })
}

/// The word without quotes, and without the `-S` of `env` in front of it.
fn unwrap_word(word: &[u8]) -> &[u8] {
    let word = match word.strip_prefix(b"-") {
        Some(long) if long.starts_with(b"-") => word.strip_prefix(b"--split-string=").unwrap_or(word),
        Some(letters) => letters.splitn(2, |letter| *letter == b'S').nth(1).unwrap_or(word),
        None => word,
    };
    let is_quote = |byte: &u8| matches!(byte, b'\'' | b'"');
    let start = word.iter().position(|byte| !is_quote(byte)).unwrap_or(word.len());
    let end = word.iter().rposition(|byte| !is_quote(byte)).map_or(start, |last| last + 1);
    &word[start..end]
}

/// An option, or `NAME=value`.
fn is_other(word: &[u8]) -> bool {
    let name = word.split(|byte| *byte == b'=').next().unwrap_or_default();
    let is_name = |name: &[u8]| name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    let is_module = word.starts_with(b"-m");
    (word.starts_with(b"-") && !is_module) || (name.len() < word.len() && is_name(name))
}

fn is_module(word: &OsStr) -> bool {
    let name = word.as_bytes();
    let name = name.strip_prefix(b"-m").unwrap_or(name);
    MODULES.iter().any(|module| module.as_bytes() == name)
}

fn is_launcher(path: &Path) -> bool {
    path.file_name().is_some_and(|name| LAUNCHERS.iter().any(|launcher| name == *launcher))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(line: &str) -> bool {
        let resolve = |word: &OsStr| {
            let target = if word == "/opt/start" { "/opt/venv/bin/torchrun" } else { return None };
            Some(PathBuf::from(target))
        };
        starts_launcher(format!("{line}\nrankrun torchrun\n").as_bytes(), resolve)
    }

    #[test]
    fn launcher_in_shebang_is_detected() {
        for line in [
            "#!/usr/bin/env rankrun",
            "#!/usr/bin/env torchrun",
            "#! /usr/bin/env -S rankrun --nproc-per-node 2",
            "#!/usr/bin/env -Srankrun --nproc-per-node 2",
            "#!/usr/bin/env -vSrankrun",
            "#!/usr/bin/env --split-string=rankrun -v",
            "#!/usr/bin/env -S -i PATH=/bin 'rankrun'",
            "#!/usr/bin/env -S \"/a/rankrun\" x",
            "#!/usr/bin/env -S ${HOME}/bin/rankrun",
            "#!/a/b/torchrun",
            "#!torchrun",
            "#!/opt/start",
            "#!/usr/bin/env rankrun\r",
            "#!/usr/bin/env -S srun -N2 rankrun --nnodes 2",
            "#!/usr/bin/env -S python -m torch.distributed.run --nproc-per-node 2",
            "#!/usr/bin/env -S python -mtorch.distributed.launch",
            "#!/usr/bin/python3 /a/torchrun",
        ] {
            assert!(starts(line), "{line}");
        }
    }

    #[test]
    fn other_first_line_is_not_a_launcher() {
        for line in [
            "",
            "#!",
            "#! ",
            "#!/bin/sh",
            "# rankrun",
            "#!/opt/rankrun/bin/python",
            "#!/usr/bin/env -S LAUNCHER=/a/rankrun sh",
            "#!/usr/bin/env -S uv run --script --with rankrun python",
            "#!/usr/bin/env -S python --launcher=rankrun",
            "#!/usr/bin/env my-rankrun",
            "#!/usr/bin/env -S python -m torch.distributed",
        ] {
            assert!(!starts(line), "{line}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_first_line_does_not_panic(line in proptest::collection::vec(proptest::num::u8::ANY, 0..64)) {
            let _ = starts_launcher(&[b"#!", &line[..]].concat(), |_| None);
        }
    }
}
