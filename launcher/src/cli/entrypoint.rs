//! Decides what each worker runs (script, module or program), and checks before the start that it can be run. Facts
//! about files come from [`Facts`]; the result is the `Entrypoint` of the launch. It starts nothing.

mod advice;

pub(super) use advice::is_python;

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::error::{CliError, SettingError};
use super::option::LaunchOption;
use super::other_language::other_language;
use super::python::choose_python;
use super::settings::{CommandLine, Settings};
use super::shebang::{LONGEST_LINE, starts_launcher};
use super::subcommand;
use super::suggest::{answer_to_command, nearest_of};
use rankrun_core::facts::{Facts, FileKind, Permission};
use rankrun_core::notice::{IgnoredBecause, Notice};
use rankrun_core::spec::{CliFlavor, Entrypoint};
use rankrun_host::process::exec_problem::noexec_hint;
use rankrun_host::program::{ProgramProblem, find_program};

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
    if let Some(run_path) = settings.get(&settings.args.torchrun.run_path) {
        let because = IgnoredBecause::RunPath(run_path.origin);
        return resolve_run_path(settings, argv0, typed, (because, notices));
    }
    let program = |path| Entrypoint::Program { path, name: typed.clone() };
    let no_python = settings.get(&settings.args.torchrun.no_python);
    let module = settings.get(&settings.args.torchrun.module);
    if let (Some(no_python), Some(module)) = (&no_python, &module) {
        return Err(SettingError::exclusive(no_python.origin.clone(), &module.origin).into());
    }
    let module = module.is_some();
    if no_python.is_some() {
        let path =
            find_program(typed, settings.facts).map_err(|problem| no_program(typed, &problem, None))?;
        return Ok(program(path));
    }
    let found = if module { None } else { program_without_asking(settings, typed)? };
    let script = match found {
        Some(EntrypointFile::Program(path)) => return Ok(program(path)),
        Some(EntrypointFile::Script(path)) => path.into_os_string(),
        None => typed.clone(),
    };
    if !module {
        check_script(settings, &script, typed)?;
    } else if settings.cli_flavor == CliFlavor::Rankrun && is_no_module(typed, settings.facts) {
        let module = typed.to_string_lossy();
        let message = format!("`--module` takes the name of a module, and `{module}` is not one");
        return Err(CliError::refused(message, advice::hint_for_module(&module)));
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
pub(super) fn refuse_list_as_entrypoint(settings: &Settings<'_>, line: &CommandLine) -> Result<(), CliError> {
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
    let problem = "is not a program: it looks like more of the list of `--devices`";
    let hint = format!("write the list as one word: `--devices {}`", list.join(","));
    Err(refused(&line.entrypoint, problem, hint))
}

/// What was found at the entrypoint, or in `PATH` under its name.
enum EntrypointFile {
    Program(PathBuf),
    /// An executable file whose first line starts a launcher: Python runs it.
    Script(PathBuf),
}

/// `--run-path` wins over the other two, as under torchrun.
fn resolve_run_path(
    settings: &Settings<'_>,
    argv0: &OsStr,
    typed: &OsString,
    (because, notices): (IgnoredBecause, &mut Vec<Notice>),
) -> Result<Entrypoint, CliError> {
    for found in ["no-python", "module"].into_iter().filter_map(|flag| settings.find(flag)) {
        notices.push(Notice::Ignored { origin: found.origin, because: because.clone() });
    }
    // `runpy` opens any name: `-` is a file's name.
    let path = if typed == "-" { OsStr::new("./-") } else { typed.as_os_str() };
    check_script(settings, path, typed)?;
    let (python, notice) = choose_python(argv0, settings.facts)?;
    notices.extend(notice);
    Ok(Entrypoint::RunPath { python, script: typed.clone() })
}

fn refused(typed: &OsStr, problem: impl Display, hint: impl Into<Cow<'static, str>>) -> CliError {
    CliError::refused(format!("the entrypoint `{}` {problem}", typed.to_string_lossy()), hint)
}

/// The entrypoint is a program that cannot be run; `meant` is a file that it may stand for.
fn no_program(typed: &OsStr, problem: &ProgramProblem, meant: Option<&str>) -> CliError {
    let name = typed.to_string_lossy();
    let is_absent = matches!(problem, ProgramProblem::Missing { .. } | ProgramProblem::NotInPath { .. });
    let hint = match problem {
        _ if is_absent && subcommand::is_name(&name) => {
            format!("the word `{name}` must stand first; a file of that name is `./{name}`")
        }
        _ if is_absent && name.contains(' ') => {
            "it has a space in it: leave out the quotes around the program and its arguments".to_owned()
        }
        ProgramProblem::Missing { folder } if folder.as_os_str().is_empty() => {
            "change to a folder that exists with `cd`".to_owned()
        }
        ProgramProblem::Missing { .. } | ProgramProblem::NotInPath { .. } if meant.is_some() => {
            format!("did you mean `{}`?", meant.unwrap_or_default())
        }
        ProgramProblem::Missing { .. } => advice::hint_for_name(&name)
            .unwrap_or_else(|| "check the path; for a module give `-m`".to_owned()),
        ProgramProblem::NotInPath { .. } if advice::is_list(&name) => {
            format!("`{name}` stands in the place of the program; a list is one word, as in `--devices 0,2`")
        }
        ProgramProblem::NotInPath { .. } if is_python_file(Path::new(typed)) => {
            "leave `--no-python` out: Python then runs the script".to_owned()
        }
        ProgramProblem::NotInPath { .. } => advice::hint_for_name(&name)
            .or_else(|| answer_to_command(&name))
            .unwrap_or_else(|| format!("give its path, as in `./{name}`; for a module give `-m`")),
        ProgramProblem::Directory => "name a script, or a folder that has a `__main__.py`".to_owned(),
        ProgramProblem::NotExecutable { path } if is_python_file(path) => {
            "drop `--no-python`: Python then runs it".to_owned()
        }
        ProgramProblem::NotExecutable { path } => format!("chmod +x {}", path.display()),
        ProgramProblem::NoExecMount { .. } => noexec_hint().to_owned(),
    };
    refused(typed, problem, hint)
}

fn is_python_file(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "py")
}

/// Under our own name: a program that need not be announced with `--no-python`.
///
/// A file here comes first; only a bare name that is not a file here is looked up in `PATH`, as `mpirun` and `srun`
/// do. A name that ends in `.py` is always a script.
fn program_without_asking(
    settings: &Settings<'_>,
    typed: &OsStr,
) -> Result<Option<EntrypointFile>, CliError> {
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
                let problem = ProgramProblem::of_refused_file(here.to_owned());
                return Err(no_program(typed, &problem, None));
            }
            // With a slash, so that `execvp` does not look it up in PATH.
            let path = || match typed.as_bytes().contains(&b'/') {
                true => here.to_owned(),
                false => Path::new(".").join(here),
            };
            let runs = elf || (executable && first_bytes.starts_with(b"#!"));
            if let Some(other) = other_language(here, &first_bytes).filter(|_| !runs) {
                let hint = other.hint(&typed.to_string_lossy());
                return Err(refused(typed, other, hint));
            }
            Ok(runs.then(|| match is_of_launcher(&first_bytes, facts) {
                true => EntrypointFile::Script(here.to_owned()),
                false => EntrypointFile::Program(path()),
            }))
        }
        FileKind::Missing if may_be_in_path(typed) => match find_program(typed, facts) {
            Ok(path) if is_of_launcher(&facts.world().read_first_bytes(&path, LONGEST_LINE), facts) => {
                Ok(Some(EntrypointFile::Script(path)))
            }
            Ok(path) => Ok(Some(EntrypointFile::Program(path))),
            Err(problem) => {
                let meant = script_of_name(typed, facts).or_else(|| nearest_file(typed, facts));
                Err(no_program(typed, &problem, meant.as_deref()))
            }
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

/// What Python would trip over, said before the workers start. `typed` is named in the error.
fn check_script(settings: &Settings<'_>, script: &OsStr, typed: &OsStr) -> Result<(), CliError> {
    let path = Path::new(script);
    let (facts, own) = (settings.facts, settings.cli_flavor == CliFlavor::Rankrun);
    // `-` is Python's standard input; with a macro each worker has a script of its own.
    if script == "-" || script == "--" || has_macro(script, own) {
        return Ok(());
    }
    match facts.world().kind(path) {
        FileKind::Missing => {
            let problem = ProgramProblem::Missing { folder: facts.working_folder() };
            let name = typed.to_string_lossy();
            if !own && subcommand::is_name(&name) {
                let torchrun = if name == "explain" { " torchrun" } else { "" };
                let hint = format!("torchrun has no commands: write `rankrun {name}{torchrun}`");
                return Err(refused(typed, problem, hint));
            }
            Err(no_program(typed, &problem, nearest_file(script, facts).as_deref()))
        }
        FileKind::Directory if !facts.exists(&path.join("__main__.py")) => {
            Err(no_program(typed, &ProgramProblem::Directory, None))
        }
        _ if !facts.world().has_permission(Permission::Read, path) => {
            let hint = "chmod +r, or run as a user with permission to read it";
            Err(refused(typed, "cannot be read: permission denied", hint))
        }
        FileKind::File if own && path.extension() == Some(OsStr::new("ipynb")) => {
            let name = typed.to_string_lossy();
            let hint = format!("make a script of it: `jupyter nbconvert --to script {name}`");
            Err(refused(typed, "is a notebook, which Python cannot run", hint))
        }
        _ => Ok(()),
    }
}
