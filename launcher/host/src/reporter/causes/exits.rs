//! Causes from exit codes, signals, shells and the dynamic loader. A guess is worded as a guess. Pure.

use std::path::Path;

use super::text::{between, shown};
use super::{Clues, NeverExecutable, Program, Surroundings};
use crate::process::exec_problem::{carriage_return_hint, noexec_hint};
use rankrun_core::posix::{Exit, signal_name};

const CANNOT_EXECUTE: i32 = 126;
const NOT_FOUND: i32 = 127;

/// A library that the loader does not find, or one of another system.
pub(super) fn missing_library(clues: &Clues<'_>, _: &dyn Surroundings) -> Option<String> {
    if let Some(library) = clues.last_line(library_name) {
        return Some(format!(
            "the loader does not find `{}`: install it, or add its folder to `LD_LIBRARY_PATH`",
            shown(library)
        ));
    }
    let version = clues.last_line(|line| between(line, "version `", "' not found"))?;
    Some(format!(
        "it was built on a newer system than this one (`{}` is missing here): build it here, or take a build for this \
         system",
        shown(version)
    ))
}

/// `./a: error while loading shared libraries: libx.so: cannot open …`, `ImportError: libx.so: cannot open …`
fn library_name(line: &str) -> Option<&str> {
    let (message, _) = line.split_once(": cannot open shared object file")?;
    let of_program = message.split_once("error while loading shared libraries: ").map(|(_, library)| library);
    of_program.or_else(|| message.strip_prefix("ImportError: ")).or_else(|| message.strip_prefix("OSError: "))
}

/// A script with the line ends of Windows.
pub(super) fn carriage_returns(clues: &Clues<'_>, surroundings: &dyn Surroundings) -> Option<String> {
    let Program::Other { path } = clues.program else { return None };
    // The return may be the last letter of the interpreter's option.
    let bad_option = || clues.output_contains(&["invalid option", "llegal option", "nknown option"]);
    let is_shells = match clues.exit {
        Exit::Code(CANNOT_EXECUTE | NOT_FOUND) => true,
        Exit::Code(1 | 2) => bad_option(),
        _ => false,
    };
    (is_shells && surroundings.has_carriage_return(path)).then(|| {
        let file = path.display();
        format!("the first line of `{file}` ends in a carriage return (CRLF): {}", carriage_return_hint(path))
    })
}

/// A command that a shell did not find or could not execute.
pub(super) fn command_hint(clues: &Clues<'_>, surroundings: &dyn Surroundings) -> Option<String> {
    let Exit::Code(code @ (CANNOT_EXECUTE | NOT_FOUND)) = clues.exit else { return None };
    let quoted = ["\\r': command not found", "\\r': No such file", "\\r’: No such file"];
    // A shell that quotes nothing writes the return itself, and of the line only its end is left.
    if clues.output_contains(&quoted) || clues.lines().any(|line| line == ": not found") {
        return Some(
            "a script has the line ends of Windows (CRLF): `sed -i 's/\\r$//' SCRIPT` removes the carriage returns"
                .to_owned(),
        );
    }
    if code == NOT_FOUND {
        let name = clues.last_line(missing_command)?;
        return Some(format!(
            "a shell did not find the command `{}`: give its path, or add its folder to `PATH`",
            shown(name)
        ));
    }
    if let Some(name) = clues.last_line(|line| command_of_shell(line, ": Is a directory")) {
        return Some(folder_as_command(name));
    }
    if let Some(name) = clues.last_line(|line| command_of_shell(line, ": Permission denied")) {
        return Some(refused_command(name, surroundings.never_executable(Path::new(name))));
    }
    let name = clues.last_line(|line| command_of_shell(line, ": cannot execute binary file"))?;
    Some(format!(
        "`{}` is not a program of this machine ({}): build or install it for this one",
        shown(name),
        std::env::consts::ARCH
    ))
}

fn refused_command(name: &str, never_executable: Option<NeverExecutable>) -> String {
    let shown = shown(name);
    match never_executable {
        Some(NeverExecutable::Folder) => folder_as_command(name),
        Some(NeverExecutable::Mount) => format!(
            "a shell may not run `{shown}`, whose file system is mounted with `noexec`: {}",
            noexec_hint()
        ),
        None => {
            format!("a shell may not run `{shown}`: `chmod +x {shown}`, or name a file that is a program")
        }
    }
}

fn folder_as_command(name: &str) -> String {
    format!("a shell may not run `{}`, which is a folder: name a program in it", shown(name))
}

/// The command before that text, in a line that begins as a shell's errors do.
fn command_of_shell<'a>(line: &'a str, text: &str) -> Option<&'a str> {
    let (before, _) = line.split_once(text)?;
    let (start, command) = before.rsplit_once(": ")?;
    (is_of_shell(start) && !command.contains(' ')).then_some(command)
}

/// The start of a shell's error: `run.sh: line 3` (bash), `run.sh: 3` (dash), `zsh:1`, or the shell alone (`/bin/sh`).
fn is_of_shell(start: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_place = |text: &str| is_number(text.strip_prefix("line ").unwrap_or(text));
    let is_shell = |path: &str| {
        let name = path.rsplit('/').next().unwrap_or_default();
        ["sh", "bash", "dash", "ash", "ksh", "mksh", "zsh"].contains(&name.trim_start_matches('-'))
    };
    let start = start.strip_suffix(": exec").unwrap_or(start);
    match start.rsplit_once(':') {
        Some((name, place)) => !name.is_empty() && is_place(place.trim_start()),
        None => is_shell(start),
    }
}

/// The command in `bash: line 1: x: command not found`, `sh: 1: x: not found` or `env: 'x': No such file or directory`.
fn missing_command(line: &str) -> Option<&str> {
    if let Some((start, name)) = line.split_once(": command not found: ") {
        return Some(name).filter(|_| is_of_shell(start));
    }
    if let Some(text) = [": command not found", ": not found"].into_iter().find(|text| line.ends_with(text)) {
        return command_of_shell(line, text);
    }
    let before = line.strip_suffix(": No such file or directory")?;
    let (start, name) = before.rsplit_once(": ")?;
    let is_env = start == "env" || start.ends_with("/env");
    Some(name.trim_matches(['\'', '‘', '’', '"'])).filter(|_| is_env || is_of_shell(start))
}

/// Exit codes 126, 127 and 128 + n without a more specific output line.
pub(super) fn shell_code(clues: &Clues<'_>, _: &dyn Surroundings) -> Option<String> {
    let Exit::Code(code) = clues.exit else { return None };
    match code {
        CANNOT_EXECUTE => Some(
            "exit code 126 is most often a shell's `permission denied`: `chmod +x` the command that it runs".to_owned(),
        ),
        NOT_FOUND => Some(
            "exit code 127 is most often a shell's `command not found`: look for a misspelt command, or one that is not \
             in `PATH`"
                .to_owned(),
        ),
        129..=192 => shell_signal_hint(code - 128, clues.program),
        _ => None,
    }
}

fn shell_signal_hint(number: i32, program: Program<'_>) -> Option<String> {
    let what = match number {
        libc::SIGKILL => "was killed, most often for want of memory: see `dmesg`",
        libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE => {
            "crashed in native code: `PYTHONFAULTHANDLER=1` makes Python print where"
        }
        libc::SIGABRT => "aborted: its own last lines say why",
        libc::SIGTERM | libc::SIGINT | libc::SIGHUP => {
            "was stopped from outside, as by `kill` or a scheduler"
        }
        _ => return None,
    };
    let subject = match program {
        Program::Python { .. } => "the script passed on the end of a command that",
        Program::Other { .. } => "a command in it",
    };
    let (code, name) = (128 + number, signal_name(number));
    Some(format!("{code} is 128 + {number} ({name}): probably {subject} {what}"))
}

/// Signals with a cause that is most often the same.
pub(super) fn signal_hint(clues: &Clues<'_>, surroundings: &dyn Surroundings) -> Option<String> {
    let Exit::Signal { number, .. } = clues.exit else { return None };
    let where_it_crashed = || {
        let core = "a core file (`ulimit -c unlimited` before the start) shows the rest";
        if clues.output_contains(&["Fatal Python error: "]) {
            return format!("the lines below `Fatal Python error` say where Python was; {core}");
        }
        match surroundings.non_empty_variable("PYTHONFAULTHANDLER") {
            Some(_) => core.to_owned(),
            None => format!("`PYTHONFAULTHANDLER=1` makes Python print where; {core}"),
        }
    };
    match number {
        libc::SIGSEGV => Some(format!("it probably crashed in native code: {}", where_it_crashed())),
        libc::SIGILL => Some(format!(
            "it was probably built for a newer processor than this one (`lscpu` lists what this one can): {}",
            where_it_crashed()
        )),
        libc::SIGFPE => Some(format!("native code probably divided an integer by zero: {}", where_it_crashed())),
        libc::SIGSYS => Some(
            "it made a system call that is not permitted here (seccomp): run it with another profile, or outside of the \
             container"
                .to_owned(),
        ),
        libc::SIGXCPU => Some(
            "the limit on CPU time is over: raise it with `ulimit -t` in the shell that starts the launcher".to_owned(),
        ),
        libc::SIGPIPE => {
            Some("it wrote to a pipe or socket without a reader: look for the process that ended first".to_owned())
        }
        _ => None,
    }
}
