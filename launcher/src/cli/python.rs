//! Which Python runs the workers.
//!
//! torchrun is itself run by one; we look where a user expects it, in this order: `PYTHON_EXEC`; the Python that
//! called us in torchrun's place (`rankrun shim`); the folder of the path by which we were called (a venv's `bin/`,
//! whatever the environment says); `PATH`; `VIRTUAL_ENV` and `CONDA_PREFIX`. In a folder `python` comes before
//! `python3`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::error::{CliError, Origin, SettingError};
use rankrun_core::facts::Facts;
use rankrun_core::notice::{Notice, PythonSource};
use rankrun_host::program::{find_program, folder_of_launcher};

const NAMES: [&str; 2] = ["python", "python3"];

/// The Python that was taken, and what to say where another place names a different one.
///
/// # Errors
/// `PYTHON_EXEC` is useless, or there is no Python anywhere.
pub(super) fn choose_python(argv0: &OsStr, facts: &Facts) -> Result<(PathBuf, Option<Notice>), CliError> {
    let mut looked = Vec::new();
    let mut candidates: Vec<(PythonSource, PathBuf)> = Vec::new();
    if let Some(value) = facts.filled_variable("PYTHON_EXEC") {
        candidates.push((PythonSource::PythonExec, python_exec(value, facts)?));
    } else if let Some(python) = facts.calling_python().filter(|python| facts.is_executable(python)) {
        // As torchrun's `sys.executable`: a Python that the user chose needs no notice about others.
        return Ok((python.to_owned(), None));
    }
    if let Some(folder) = folder_of_launcher(argv0, facts) {
        // Only `python`, which every venv has. A `python3` beside us in `/usr/bin` is the system's, and must not
        // win over the venv that the user has activated.
        let python = folder.join(NAMES[0]);
        candidates.extend(facts.is_executable(&python).then_some((PythonSource::Beside, python)));
        looked.push(folder);
    }
    let in_path = NAMES.iter().find_map(|name| facts.find_in_path(OsStr::new(name)));
    candidates.extend(in_path.map(|python| (PythonSource::Path, facts.absolute(&python))));
    looked.extend(facts.search_path());
    for (source, name) in
        [(PythonSource::VirtualEnv, "VIRTUAL_ENV"), (PythonSource::CondaPrefix, "CONDA_PREFIX")]
    {
        if let Some(prefix) = facts.filled_variable(name) {
            let folder = facts.absolute(Path::new(prefix)).join("bin");
            candidates.extend(python_in(&folder, facts).map(|python| (source, python)));
            looked.push(folder);
        }
    }
    let mut candidates = candidates.into_iter();
    let Some((source, taken)) = candidates.next() else { return Err(no_python(looked)) };
    let identity = identify(&taken, facts);
    let others: Vec<_> = candidates.filter(|(_, python)| identify(python, facts) != identity).collect();
    let notice = (!others.is_empty()).then(|| Notice::Python { taken: taken.clone(), source, others });
    Ok((taken, notice))
}

fn python_exec(value: &OsStr, facts: &Facts) -> Result<PathBuf, CliError> {
    find_program(value, facts).map_err(|problem| {
        let origin = Origin::Variable("PYTHON_EXEC".to_owned());
        let hint = "correct the variable, or unset it";
        SettingError::of_value(origin, value.to_string_lossy(), format!("which {problem}"), hint).into()
    })
}

fn no_python(mut folders: Vec<PathBuf>) -> CliError {
    folders.dedup();
    let named: Vec<String> = folders.iter().map(|folder| format!("`{}`", folder.display())).collect();
    let places = if named.is_empty() { "no folder".to_owned() } else { named.join(", ") };
    let message = format!("no `python` or `python3` to run the entrypoint with; looked in {places}");
    CliError::refused(message, "set `PYTHON_EXEC`, or give `--no-python` if the entrypoint is a program")
}

fn python_in(folder: &Path, facts: &Facts) -> Option<PathBuf> {
    NAMES.iter().map(|name| folder.join(name)).find(|python| facts.is_executable(python))
}

/// What makes two paths the same Python: the venv, since all venvs link to one file, else the file itself.
fn identify(python: &Path, facts: &Facts) -> PathBuf {
    let python = facts.absolute(python);
    let folder = python.parent().map(|folder| facts.world().resolve_links(folder)).unwrap_or_default();
    match folder.parent().map(|prefix| prefix.join("pyvenv.cfg")) {
        Some(config) if facts.exists(&config) => folder,
        _ => facts.world().resolve_links(&python),
    }
}

#[cfg(test)]
mod tests;
