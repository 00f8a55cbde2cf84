//! The commands of accelerate beside `launch` (`config`, `env`, …): its own program runs them.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::cli::error::CliError;
use crate::cli::other_launcher::{HANDED_OVER, OtherProgram};
use crate::cli::python::choose_python;
use crate::cli::suggest::nearest_of;
use rankrun_core::facts::Facts;

/// This process's own file.
const OWN_FILE: &str = "/proc/self/exe";
/// What accelerate's own script does, with one line where the package is missing.
const PROGRAM: &str = "\
import sys
try:
    from accelerate.commands.accelerate_cli import main
except ModuleNotFoundError as error:
    if (error.name or '').split('.')[0] != 'accelerate':
        raise
    sys.exit('error: `' + sys.executable + '` has no accelerate\\n\\nhint: `pip install accelerate`, or activate its environment')
sys.argv[0] = 'accelerate'
main()
";

/// accelerate's program with these words: the first `accelerate` of `PATH` that is not this binary, else that of the
/// active Python.
///
/// # Errors
/// There is no Python either, the words mean `launch`, or the program of `PATH` is a wrapper around rankrun.
pub(super) fn find(words: &[OsString], facts: &Facts) -> Result<OtherProgram, CliError> {
    let command = words.first().map_or_else(String::new, |word| format!(" {}", word.to_string_lossy()));
    if nearest_of(command.trim_start(), ["launch"].into_iter()).is_some() {
        return Err(CliError::OtherUsage {
            message: format!("accelerate has no command `{}`", command.trim_start()),
            hint: "did you mean `launch`?".to_owned(),
        });
    }
    if facts.variable(HANDED_OVER).is_some() {
        return Err(CliError::refused(
            format!(
                "the `accelerate` of PATH is a wrapper around rankrun, which cannot run `accelerate{command}`"
            ),
            format!("run accelerate's own program: `python -m accelerate.commands.accelerate_cli{command}`"),
        ));
    }
    if let Some(path) = first_in_path(facts) {
        let argv = [OsString::from("accelerate")].into_iter().chain(words.iter().cloned()).collect();
        return Ok(OtherProgram { path, argv });
    }
    let (python, _) = choose_python(OsStr::new("rankrun"), facts).map_err(|_| {
        CliError::refused(
            format!("`accelerate{command}` is a command of accelerate's own program, and PATH has neither it nor a Python"),
            "activate the environment that has accelerate, or `pip install accelerate`",
        )
    })?;
    let program = [python.clone().into_os_string(), "-c".into(), PROGRAM.into()];
    Ok(OtherProgram { path: python, argv: program.into_iter().chain(words.iter().cloned()).collect() })
}

/// This binary may be called `accelerate` itself.
fn first_in_path(facts: &Facts) -> Option<PathBuf> {
    let own = facts.world().resolve_links(Path::new(OWN_FILE));
    let programs = facts.search_path().into_iter().map(|folder| folder.join("accelerate"));
    programs.filter(|path| facts.is_executable(path)).find(|path| facts.world().resolve_links(path) != own)
}
