//! What each worker runs, and whether it can be run: looked at before anything starts.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::error::{CliError, EntrypointProblem, SettingError};
use super::option::LaunchOption;
use super::other_language::other_language;
use super::python::{choose_python, find_program};
use super::settings::{CommandLine, Settings};
use super::shebang::{LONGEST_LINE, starts_launcher};
use super::suggest::nearest_of;
use crate::facts::{Facts, FileKind, Permission};
use crate::notice::{IgnoredBecause, Notice};
use crate::spec::{CliFlavor, Entrypoint};

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
    if settings.args.torchrun.run_path.is_some() {
        return resolve_run_path(settings, argv0, typed, notices);
    }
    let program = |path| Entrypoint::Program { path, name: typed.clone() };
    let no_python = settings.args.torchrun.no_python.is_some();
    let module = settings.args.torchrun.module.is_some();
    if no_python && module {
        return Err(SettingError::ModuleWithoutPython.into());
    }
    if no_python {
        let path = find_program(typed, settings.facts).map_err(|problem| refused(typed, problem))?;
        return Ok(program(path));
    }
    let found = if module { None } else { program_without_asking(settings, typed)? };
    let script = match found {
        Some(Found::Program(path)) => return Ok(program(path)),
        Some(Found::Script(path)) => path.into_os_string(),
        None => typed.clone(),
    };
    if !module {
        check_script(settings, &script).map_err(|problem| refused(typed, problem))?;
    } else if settings.cli_flavor == CliFlavor::Rankrun && is_no_module(typed, settings.facts) {
        return Err(SettingError::ModuleIsPath { module: typed.to_string_lossy().into_owned() }.into());
    }
    let (python, notice) = choose_python(argv0, settings.facts)?;
    notices.extend(notice);
    Ok(if module {
        Entrypoint::Module { python, module: typed.clone() }
    } else {
        Entrypoint::Script { python, script }
    })
}

/// `--devices 0 2 train.py`: refused before the devices are looked for, since their error would hide this one.
///
/// # Errors
/// The entrypoint can only be the rest of a list of devices.
pub(super) fn refuse_list_as_entrypoint(
    settings: &Settings<'_>,
    line: &CommandLine,
) -> Result<(), SettingError> {
    let is_list = |word: &OsStr| {
        let text = word.as_bytes();
        let may_be = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b',' | b'-' | b':');
        text.first().is_some_and(u8::is_ascii_digit) && text.iter().all(may_be)
    };
    let last = line.options.last().filter(|last| last.option.long_name() == "devices");
    let Some(devices) = last.map(|last| &last.setting.value).filter(|value| is_list(value)) else {
        return Ok(());
    };
    if settings.cli_flavor == CliFlavor::Torchrun || !is_list(&line.entrypoint) {
        return Ok(());
    }
    let facts = settings.facts;
    if facts.world().kind(Path::new(&line.entrypoint)) != FileKind::Missing
        || facts.find_in_path(&line.entrypoint).is_some()
    {
        return Ok(());
    }
    let words = [devices, &line.entrypoint].into_iter().chain(&line.arguments);
    let list: Vec<String> = words
        .take_while(|word| is_list(word))
        .map(|word| word.to_string_lossy().trim_end_matches(',').to_owned())
        .collect();
    Err(refused(&line.entrypoint, EntrypointProblem::RestOfList { list: list.join(",") }))
}

/// What was found at the entrypoint, or in `PATH` under its name.
enum Found {
    Program(PathBuf),
    /// An executable file whose first line starts a launcher: Python runs it.
    Script(PathBuf),
}

/// `--run-path` wins over the other two, as under torchrun.
fn resolve_run_path(
    settings: &Settings<'_>,
    argv0: &OsStr,
    typed: &OsString,
    notices: &mut Vec<Notice>,
) -> Result<Entrypoint, CliError> {
    for found in ["no-python", "module"].into_iter().filter_map(|flag| settings.find(flag)) {
        notices.push(Notice::Ignored { origin: found.origin, because: IgnoredBecause::RunPath });
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
fn program_without_asking(settings: &Settings<'_>, typed: &OsStr) -> Result<Option<Found>, SettingError> {
    let here = Path::new(typed);
    if settings.cli_flavor == CliFlavor::Torchrun || here.extension() == Some(OsStr::new("py")) {
        return Ok(None);
    }
    let facts = settings.facts;
    match facts.world().kind(here) {
        FileKind::File => {
            let first_bytes = facts.world().read_first_bytes(here, LONGEST_LINE);
            let executable = facts.is_executable(here);
            let elf = first_bytes.starts_with(b"\x7fELF");
            if elf && !executable {
                let problem = EntrypointProblem::of_refused_file(here.to_owned());
                return Err(refused(typed, problem));
            }
            // With a slash, so that `execvp` does not look it up in PATH.
            let path = || match typed.as_bytes().contains(&b'/') {
                true => here.to_owned(),
                false => Path::new(".").join(here),
            };
            let runs = elf || (executable && first_bytes.starts_with(b"#!"));
            if let Some(other) = other_language(here, &first_bytes).filter(|_| !runs) {
                return Err(refused(typed, EntrypointProblem::OtherLanguage(other)));
            }
            Ok(runs.then(|| match is_of_launcher(&first_bytes, facts) {
                true => Found::Script(here.to_owned()),
                false => Found::Program(path()),
            }))
        }
        FileKind::Missing if may_be_in_path(typed) => match find_program(typed, facts) {
            Ok(path) if is_of_launcher(&facts.world().read_first_bytes(&path, LONGEST_LINE), facts) => {
                Ok(Some(Found::Script(path)))
            }
            Ok(path) => Ok(Some(Found::Program(path))),
            Err(EntrypointProblem::NotInPath { folders, .. }) => {
                let script = script_of_name(typed, facts).or_else(|| nearest_file(typed, facts));
                Err(refused(typed, EntrypointProblem::NotInPath { folders, script }))
            }
            Err(problem) => Err(refused(typed, problem)),
        },
        _ => Ok(None),
    }
}

/// Whether a file that begins with these bytes starts a launcher on itself.
fn is_of_launcher(first_bytes: &[u8], facts: &Facts) -> bool {
    let resolve = |word: &OsStr| {
        let program = find_program(word, facts).ok()?;
        Some(facts.world().resolve_links(&program))
    };
    starts_launcher(first_bytes, resolve)
}

/// `train.py`, where `train` was typed and only the script is here.
fn script_of_name(typed: &OsStr, facts: &Facts) -> Option<String> {
    let script = format!("{}.py", typed.to_str()?);
    (facts.world().kind(Path::new(&script)) == FileKind::File).then_some(script)
}

/// Whether Python finds no module of this name: a slash is in it, or it is the name of a file.
fn is_no_module(module: &OsStr, facts: &Facts) -> bool {
    let path = Path::new(module);
    let text = module.as_bytes();
    text.is_empty()
        || text.ends_with(b".")
        || text.contains(&b'/')
        || (path.extension() == Some(OsStr::new("py")) && facts.is_file(path))
}

/// So many names of a folder are compared with a misspelt one.
const MOST_NAMES: usize = 2000;

/// A file beside the one that is missing, with nearly its name.
fn nearest_file(typed: &OsStr, facts: &Facts) -> Option<String> {
    let path = Path::new(typed);
    let (folder, name) = (path.parent()?, path.file_name()?.to_str()?);
    let names = facts.world().list_names(folder, MOST_NAMES);
    let nearest = folder.join(nearest_of(name, names.iter().map(String::as_str))?);
    facts.is_file(&nearest).then(|| nearest.to_string_lossy().into_owned())
}

fn may_be_in_path(typed: &OsStr) -> bool {
    !typed.is_empty()
        && typed != "-"
        && typed != "--"
        && !typed.as_bytes().iter().any(|byte| matches!(byte, b'/' | b'$'))
}

/// Whether each worker may replace a part of the word; under the name torchrun any `$` may begin one.
fn has_macro(typed: &OsStr, own: bool) -> bool {
    let text = typed.to_string_lossy();
    if own { text.contains("${local_rank}") || text.contains("${rank}") } else { text.contains('$') }
}

/// What Python would trip over, said before the workers start.
fn check_script(settings: &Settings<'_>, typed: &OsStr) -> Result<(), EntrypointProblem> {
    let path = Path::new(typed);
    let (facts, own) = (settings.facts, settings.cli_flavor == CliFlavor::Rankrun);
    // `-` is Python's standard input; with a macro each worker has a script of its own.
    if typed == "-" || typed == "--" || has_macro(typed, own) {
        return Ok(());
    }
    match facts.world().kind(path) {
        FileKind::Missing => Err(EntrypointProblem::Missing {
            folder: facts.working_folder(),
            nearest: nearest_file(typed, facts),
        }),
        FileKind::Directory if !facts.exists(&path.join("__main__.py")) => Err(EntrypointProblem::Directory),
        _ if !facts.world().has_permission(Permission::Read, path) => Err(EntrypointProblem::NotReadable),
        FileKind::File if own && path.extension() == Some(OsStr::new("ipynb")) => {
            Err(EntrypointProblem::Notebook)
        }
        _ => Ok(()),
    }
}
