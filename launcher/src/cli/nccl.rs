//! Which NCCL workers in Rust load: `--nccl-lib`.

use std::path::{Path, PathBuf};

use super::error::{CliError, Expected};
use super::resolve::refused;
use super::settings::Settings;

const LIBRARY: Expected = Expected::new("a file; workers in Rust are to load it as NCCL's library", "")
    .advised(|_, _| Some("name the file itself, as in `/usr/lib/libnccl.so.2`".to_owned()));

/// The library's file, from wherever workers may run.
///
/// # Errors
/// There is no such file.
pub(super) fn resolve_nccl_library(settings: &Settings<'_>) -> Result<Option<PathBuf>, CliError> {
    let Some(found) = settings.get(&settings.args.nccl_lib) else { return Ok(None) };
    let path = settings.facts.absolute(Path::new(&found.value));
    if found.value.is_empty() || !settings.facts.is_file(&path) {
        return Err(refused(found.origin, found.value.to_string_lossy(), LIBRARY));
    }
    Ok(Some(path))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::cli::{Command, interpret};
    use rankrun_core::facts::fake::FakeWorld;

    fn library(words: &[&str], environment: &[(&str, &str)]) -> Result<Option<PathBuf>, CliError> {
        let argv: Vec<OsString> = words.iter().chain(&["--no-python", "true"]).map(OsString::from).collect();
        let environment: Vec<_> = environment.iter().copied().chain([("PATH", "/usr/bin")]).collect();
        let world = FakeWorld::default().program("/usr/bin/true").file("/job/libnccl.so.2", b"");
        match interpret(&argv, &world.facts(&environment))? {
            Command::Launch(launch) => Ok(launch.spec.defaults.nccl_library),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn nccl_library_path_is_made_absolute() {
        let file = Some(PathBuf::from("/job/libnccl.so.2"));
        assert_eq!(library(&["rankrun"], &[]).unwrap(), None);
        assert_eq!(library(&["rankrun", "--nccl-lib", "/job/libnccl.so.2"], &[]).unwrap(), file);
        assert_eq!(library(&["rankrun", "run", "--nccl-lib=libnccl.so.2"], &[]).unwrap(), file);
        let variable = [("RANKRUN_NCCL_LIB", "libnccl.so.2")];
        assert_eq!(library(&["torchrun"], &variable).unwrap(), file);
        assert!(library(&["torchrun", "--nccl-lib=libnccl.so.2"], &[]).is_err());
    }

    #[test]
    fn nccl_library_that_is_not_a_file_is_refused() {
        for (word, value) in
            [("--nccl-lib=/nowhere", "`/nowhere`"), ("--nccl-lib=", "empty"), ("--nccl-lib=/job", "`/job`")]
        {
            let error = library(&["rankrun", word], &[]).unwrap_err();
            let text = format!("`--nccl-lib` is {value}, which is not a file; ");
            assert!(error.to_string().starts_with(&text), "{error}");
            assert_eq!(error.exit_code(), 1);
        }
    }
}
