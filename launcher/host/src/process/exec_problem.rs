//! The reason for a failed `execve`: reads the first bytes of the file (elf(5), execve(2)).

use std::fmt;
use std::io::{self, Read};
use std::path::Path;

use nix::errno::Errno;

use crate::process::elf::{Elf, LOADER};
use crate::regular_file;
use rankrun_core::plain::plain;

/// Linkers put the loader's name and the notes into the first page, and the kernel reads a script's first line there.
const HEAD: usize = 4096;
/// The kernel reads no longer first line (`BINPRM_BUF_SIZE`).
const LONGEST_PATH: usize = 256;
/// The machine that this launcher is built for.
const HERE: &str = std::env::consts::ARCH;

/// `e_machine` of an ELF file, and the name of the machine.
const MACHINES: [(u16, &str); 11] = [
    (2, "sparc"),
    (3, "i386 (32-bit x86)"),
    (8, "mips"),
    (20, "ppc"),
    (21, "ppc64"),
    (22, "s390x"),
    (40, "arm (32-bit)"),
    (62, "x86_64"),
    (183, "aarch64"),
    (243, "riscv64"),
    (258, "loongarch64"),
];
/// Programs of other systems, by their first bytes.
const SYSTEMS: [(&[u8], &str); 4] = [
    (b"MZ", "Windows"),
    (b"\xcf\xfa\xed\xfe", "macOS"),
    (b"\xce\xfa\xed\xfe", "macOS"),
    (b"\xca\xfe\xba\xbe", "macOS"),
];
/// `e_type` of ELF files that are not programs: `ET_REL`, `ET_CORE`.
const OBJECT: u64 = 1;
const CORE: u64 = 4;

/// The problem of a program that the kernel refuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ExecProblem {
    /// The file is a program for another processor.
    OtherMachine {
        /// The name of the processor that it needs.
        machine: String,
    },
    /// The loader of a program for this machine is missing.
    NoLoader {
        /// The path of the loader that is missing.
        loader: String,
        /// Whether the program is one of 32 bits on a machine of 64.
        narrow: bool,
    },
    /// The first line of the script ends in CRLF.
    CarriageReturn {
        /// The interpreter without the carriage return.
        interpreter: String,
    },
    /// The interpreter of a script does not exist.
    NoInterpreter {
        /// As the first line names it.
        interpreter: String,
    },
    /// The interpreter of a script may not be executed.
    InterpreterNotExecutable {
        /// As the first line names it.
        interpreter: String,
    },
    /// The interpreter of a script is not a program of this machine.
    OfInterpreter {
        /// As the first line names it.
        interpreter: String,
        /// The problem of the interpreter's own file.
        problem: Box<Self>,
    },
    /// A program for another operating system.
    OtherSystem {
        /// The name of the operating system that it needs.
        system: &'static str,
    },
    /// The file has no content at all.
    Empty,
    /// A program for this machine whose file the kernel cannot use.
    Damaged,
    /// An object file that no linker has made a program of, or a core file.
    NotLinked,
    /// The file system is mounted with `noexec`.
    NoExecMount,
    /// The format of the file is not known.
    UnknownFormat,
}

impl fmt::Display for ExecProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first_line = "its first line names";
        match self {
            Self::OtherMachine { machine } => {
                write!(f, "it is a program for {machine}, and this machine is {HERE}")
            }
            Self::NoLoader { loader, narrow } => {
                let bits = if *narrow { "it is a 32-bit program; " } else { "" };
                write!(f, "{bits}its loader `{loader}` does not exist")
            }
            Self::CarriageReturn { interpreter } => write!(
                f,
                "its first line ends in a carriage return (CRLF), so the kernel looks for `{interpreter}\\r`"
            ),
            Self::NoInterpreter { interpreter } => {
                write!(f, "{first_line} `{interpreter}`, which does not exist")
            }
            Self::InterpreterNotExecutable { interpreter } => {
                write!(f, "{first_line} `{interpreter}`, which may not be executed")
            }
            Self::OfInterpreter { interpreter, problem } => {
                write!(f, "{first_line} `{interpreter}`: {problem}")
            }
            Self::OtherSystem { system } => write!(f, "it is a program for {system}"),
            Self::Empty => f.write_str("the file is empty"),
            Self::Damaged => f.write_str("it is damaged or cut off"),
            Self::NotLinked => f.write_str("it is an object or core file, and no program"),
            Self::NoExecMount => f.write_str("its file system is mounted with `noexec`"),
            Self::UnknownFormat => {
                f.write_str("it is neither a program nor a script with a first line such as `#!/bin/sh`")
            }
        }
    }
}

impl ExecProblem {
    /// The problem that explains the kernel's refusal, if the file shows one.
    #[must_use]
    pub(crate) fn find(program: &Path, refusal: &io::Error) -> Option<Self> {
        let errno = Errno::from_raw(refusal.raw_os_error()?);
        if !matches!(errno, Errno::ENOENT | Errno::ENOEXEC | Errno::EACCES) {
            return None;
        }
        if errno == Errno::EACCES && is_on_noexec_mount(program) {
            return Some(Self::NoExecMount);
        }
        let problem = find(errno, &head(program)?, &Path::exists)?;
        let Self::OfInterpreter { interpreter, .. } = problem else { return Some(problem) };
        let problem = find(errno, &head(Path::new(&interpreter))?, &Path::exists)?;
        Some(Self::OfInterpreter { interpreter, problem: Box::new(problem) })
    }

    /// The way out for that program.
    #[must_use]
    pub(crate) fn hint(&self, program: &Path) -> String {
        let file = program.display();
        match self {
            Self::OtherMachine { .. } => {
                format!("build or install it for {HERE}; a container's image must be one for {HERE} too")
            }
            Self::NoLoader { narrow: true, .. } => {
                "install the 32-bit C library (`libc6-i386` on Debian), or a 64-bit build of the program"
                    .to_owned()
            }
            Self::NoLoader { .. } => {
                "it was built for another system or C library: build it on this one, or link it statically"
                    .to_owned()
            }
            Self::CarriageReturn { .. } => carriage_return_hint(program),
            Self::NoInterpreter { .. } => format!(
                "correct the first line of `{file}`, or install `{file}` again where its environment was moved or removed"
            ),
            Self::InterpreterNotExecutable { interpreter } => {
                format!(
                    "correct the first line of `{file}`, or permit its interpreter: `chmod +x {interpreter}`"
                )
            }
            Self::OfInterpreter { interpreter, problem } => problem.hint(Path::new(interpreter)),
            Self::OtherSystem { .. } => "build or install it for Linux".to_owned(),
            Self::Empty | Self::Damaged => "copy or build it again: it was not written to its end".to_owned(),
            Self::NotLinked => "link it, or name the program that was built from it".to_owned(),
            Self::NoExecMount => noexec_hint().to_owned(),
            Self::UnknownFormat => {
                format!("give `{file}` a first line such as `#!/bin/sh`, or leave out `--no-python`")
            }
        }
    }
}

/// Whether no program of that file system may run (`noexec`).
#[must_use]
pub(crate) fn is_on_noexec_mount(path: &Path) -> bool {
    let stat = rustix::fs::statvfs(path);
    stat.is_ok_and(|stat| stat.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC))
}

/// The way out of a mount with `noexec`.
#[must_use]
pub const fn noexec_hint() -> &'static str {
    "copy it to a file system that permits programs (`findmnt -T FILE` shows the options of the mount)"
}

/// How the carriage returns of a script are removed.
#[must_use]
pub(crate) fn carriage_return_hint(script: &Path) -> String {
    format!("`sed -i 's/\\r$//' {}` removes the carriage returns of all lines", script.display())
}

/// The interpreter in a script's first line as the kernel reads it, and whether a carriage return ends the line.
#[must_use]
pub fn interpreter(head: &[u8]) -> Option<(String, bool)> {
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let is_crlf = line.ends_with(b"\r");
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let path = line.split(|byte| matches!(byte, b' ' | b'\t')).find(|word| !word.is_empty())?;
    Some((shown(path), is_crlf))
}

/// The file that the kernel opens next for a program with this head: a script's interpreter, or the loader.
#[must_use]
pub(crate) fn needed_file(head: &[u8]) -> Option<String> {
    let interpreter = interpreter(head).map(|(path, _)| path);
    interpreter.or_else(|| loader(&Elf::parse(head)?))
}

/// Whether the kernel may open a file that [`needed_file`] does not know: patchelf moves the loader's name to the end.
#[must_use]
pub(crate) fn may_need_unknown_file(head: &[u8]) -> bool {
    Elf::parse(head).is_some_and(|elf| elf.may_have_beyond(LOADER))
}

/// The path of the loader that the program names.
fn loader(elf: &Elf<'_>) -> Option<String> {
    elf.segments(LOADER).next()?.split(|byte| *byte == 0).next().map(shown)
}

/// A path out of a file, which may hold any bytes.
fn shown(path: &[u8]) -> String {
    plain(&String::from_utf8_lossy(&path[..path.len().min(LONGEST_PATH)]))
}

/// The start of a file; nothing where it cannot be read.
#[must_use]
pub fn head(program: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(HEAD);
    regular_file::open_to_read(program).ok()?.take(HEAD as u64).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Pure. The caller resolves [`ExecProblem::OfInterpreter`] with the interpreter's head.
fn find(errno: Errno, head: &[u8], exists: &dyn Fn(&Path) -> bool) -> Option<ExecProblem> {
    if let Some((interpreter, is_crlf)) = interpreter(head) {
        return of_script(errno, interpreter, is_crlf, exists);
    }
    match errno {
        Errno::ENOENT => {
            let elf = Elf::parse(head)?;
            let loader = loader(&elf)?;
            let narrow = !elf.is_64_bit && cfg!(target_pointer_width = "64");
            (!exists(Path::new(&loader))).then_some(ExecProblem::NoLoader { loader, narrow })
        }
        Errno::ENOEXEC if head.starts_with(b"\x7fELF") => {
            let Some(elf) = Elf::parse(head) else { return Some(ExecProblem::Damaged) };
            let machine = machine_name(elf.machine, elf.is_64_bit);
            Some(match elf.number(16, 2) {
                _ if machine != HERE => ExecProblem::OtherMachine { machine },
                Some(OBJECT | CORE) => ExecProblem::NotLinked,
                _ => ExecProblem::Damaged,
            })
        }
        Errno::ENOEXEC => {
            let system = SYSTEMS.iter().find(|(magic, _)| head.starts_with(magic));
            Some(match system {
                Some(&(_, system)) => ExecProblem::OtherSystem { system },
                None if head.is_empty() => ExecProblem::Empty,
                None => ExecProblem::UnknownFormat,
            })
        }
        _ => None,
    }
}

fn of_script(
    errno: Errno,
    interpreter: String,
    is_crlf: bool,
    exists: &dyn Fn(&Path) -> bool,
) -> Option<ExecProblem> {
    let is_there = exists(Path::new(&interpreter));
    match errno {
        // With an argument the carriage return is the argument's.
        Errno::ENOENT if is_crlf && is_there => Some(ExecProblem::CarriageReturn { interpreter }),
        Errno::ENOENT if !is_there => Some(ExecProblem::NoInterpreter { interpreter }),
        Errno::EACCES if is_there => Some(ExecProblem::InterpreterNotExecutable { interpreter }),
        Errno::ENOENT | Errno::ENOEXEC => {
            Some(ExecProblem::OfInterpreter { interpreter, problem: Box::new(ExecProblem::UnknownFormat) })
        }
        _ => None,
    }
}

fn machine_name(machine: u16, is_64_bit: bool) -> String {
    match MACHINES.iter().find(|(number, _)| *number == machine) {
        Some((62, _)) if !is_64_bit => "x32 (x86_64 with 32-bit pointers)".to_owned(),
        Some((_, name)) => (*name).to_owned(),
        None => format!("machine number {machine} of ELF"),
    }
}

#[cfg(test)]
#[path = "exec_problem_tests.rs"]
mod tests;
