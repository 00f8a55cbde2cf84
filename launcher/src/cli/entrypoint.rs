//! What each worker runs, and whether it can be run: looked at before anything starts.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::error::{CliError, EntrypointProblem, SettingError};
use super::notice::{IgnoredBecause, Notice};
use super::python::{choose_python, find_program};
use super::settings::Settings;
use super::torchrun::{MODULE, NO_PYTHON, RUN_PATH};
use crate::facts::{FileKind, Permission};
use crate::spec::{Entrypoint, Persona};

/// Decides between script, module and program, and checks that it is there.
///
/// # Errors
/// The entrypoint or its Python is missing, cannot be read, or cannot be run.
pub(super) fn resolve_entrypoint(
    settings: &Settings<'_>,
    argv0: &OsStr,
    typed: &OsString,
    notices: &mut Vec<Notice>,
) -> Result<Entrypoint, CliError> {
    if settings.flag(&RUN_PATH)? {
        return resolve_run_path(settings, argv0, typed, notices);
    }
    let program = |path| Entrypoint::Program { path, name: typed.clone() };
    let no_python = settings.flag(&NO_PYTHON)?;
    let module = settings.flag(&MODULE)?;
    if no_python && module {
        return Err(SettingError::ModuleWithoutPython.into());
    }
    if no_python {
        let path = find_program(typed, settings.facts).map_err(|problem| refused(typed, problem))?;
        return Ok(program(path));
    }
    if !module && let Some(path) = program_without_asking(settings, typed)? {
        return Ok(program(path));
    }
    if !module {
        check_script(settings, typed).map_err(|problem| refused(typed, problem))?;
    }
    let (python, notice) = choose_python(argv0, settings.facts)?;
    notices.extend(notice);
    Ok(if module {
        Entrypoint::Module { python, module: typed.clone() }
    } else {
        Entrypoint::Script { python, script: typed.clone() }
    })
}

/// `--run-path` wins over the other two, as under torchrun.
fn resolve_run_path(
    settings: &Settings<'_>,
    argv0: &OsStr,
    typed: &OsString,
    notices: &mut Vec<Notice>,
) -> Result<Entrypoint, CliError> {
    for row in [&NO_PYTHON, &MODULE] {
        if settings.flag(row)?
            && let Some(found) = settings.find(row)
        {
            notices.push(Notice::Ignored { origin: found.origin, because: IgnoredBecause::RunPath });
        }
    }
    // `runpy` opens what it is told: `-` is a file's name.
    let path = if typed == "-" { OsStr::new("./-") } else { typed.as_os_str() };
    check_script(settings, path).map_err(|problem| refused(typed, problem))?;
    let (python, notice) = choose_python(argv0, settings.facts)?;
    notices.extend(notice);
    Ok(Entrypoint::RunPath { python, script: typed.clone() })
}

fn refused(typed: &OsStr, problem: EntrypointProblem) -> SettingError {
    SettingError::Entrypoint { entrypoint: typed.to_string_lossy().into_owned(), problem }
}

/// Under our own name: a program that need not be announced with `--no-python`.
///
/// A file here comes first; only a bare name that is no file here is looked up in `PATH`, as `mpirun` and `srun`
/// do. A name that ends in `.py` is always a script.
fn program_without_asking(settings: &Settings<'_>, typed: &OsStr) -> Result<Option<PathBuf>, SettingError> {
    let here = Path::new(typed);
    if settings.persona == Persona::Torchrun || here.extension() == Some(OsStr::new("py")) {
        return Ok(None);
    }
    let facts = settings.facts;
    match facts.world().kind(here) {
        FileKind::File => {
            let first_bytes = facts.world().first_bytes(here);
            let executable = facts.is_executable(here);
            let elf = first_bytes.starts_with(b"\x7fELF");
            if elf && !executable {
                let problem = EntrypointProblem::NotExecutable { path: here.to_owned() };
                return Err(refused(typed, problem));
            }
            // With a slash, so that nobody looks it up in PATH.
            let path = || if here.is_absolute() { here.to_owned() } else { Path::new(".").join(here) };
            Ok((elf || (executable && first_bytes.starts_with(b"#!"))).then(path))
        }
        FileKind::Missing if may_be_in_path(typed) => match find_program(typed, facts) {
            Ok(path) => Ok(Some(path)),
            Err(problem) => Err(refused(typed, problem)),
        },
        _ => Ok(None),
    }
}

fn may_be_in_path(typed: &OsStr) -> bool {
    !typed.is_empty()
        && typed != "-"
        && typed != "--"
        && !typed.as_bytes().iter().any(|byte| matches!(byte, b'/' | b'$'))
}

/// What Python would trip over, said before the workers start.
fn check_script(settings: &Settings<'_>, typed: &OsStr) -> Result<(), EntrypointProblem> {
    // `-` is Python's standard input; a `$` may be the `${local_rank}` macro, and then each worker has its own.
    if typed == "-" || typed == "--" || typed.as_bytes().contains(&b'$') {
        return Ok(());
    }
    let path = Path::new(typed);
    let facts = settings.facts;
    match facts.world().kind(path) {
        FileKind::Missing => Err(EntrypointProblem::Missing { folder: facts.working_folder() }),
        FileKind::Directory if !facts.exists(&path.join("__main__.py")) => Err(EntrypointProblem::Directory),
        _ if !facts.world().may(Permission::Read, path) => Err(EntrypointProblem::NotReadable),
        _ => Ok(()),
    }
}
