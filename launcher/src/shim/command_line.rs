//! Parses the command line of `rankrun shim`. Pure.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::error::ShimError;

/// The request of a `rankrun shim` command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ShimRequest {
    Help,
    /// Do it, for the environment of this Python or of the one that is found.
    Act {
        verb: ShimCommand,
        python: Option<OsString>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShimCommand {
    On,
    Off,
    Status(Format),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Table,
    Json,
}

/// Parses the words after `rankrun shim`.
///
/// # Errors
/// A word is unknown or missing.
pub(super) fn parse(arguments: &[OsString]) -> Result<ShimRequest, ShimError> {
    let (mut verb, mut python, mut json) = (None, None, false);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let named =
            argument.as_bytes().strip_prefix(b"--python=").map(|path| OsString::from_vec(path.to_vec()));
        match argument.to_str() {
            Some("-h" | "--help") => return Ok(ShimRequest::Help),
            Some("--json") => json = true,
            Some("--python") => {
                python = Some(arguments.next().cloned().ok_or(ShimError::PythonMissing)?);
            }
            _ if named.is_some() => python = named,
            Some(name @ ("on" | "off" | "status")) if verb.is_none() => verb = Some(name),
            _ => return Err(ShimError::UnknownWord { word: shown(argument) }),
        }
    }
    let verb = match (verb, json) {
        (Some("on"), false) => ShimCommand::On,
        (Some("off"), false) => ShimCommand::Off,
        (Some("status"), false) => ShimCommand::Status(Format::Table),
        (Some("status"), true) => ShimCommand::Status(Format::Json),
        (Some(_), true) => return Err(ShimError::UnknownWord { word: "--json".to_owned() }),
        (None | Some(_), _) => return Err(ShimError::VerbMissing),
    };
    Ok(ShimRequest::Act { verb, python })
}

fn shown(argument: &OsStr) -> String {
    argument.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<ShimRequest, String> {
        let arguments: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        parse(&arguments).map_err(|error| error.to_string())
    }

    fn act(verb: ShimCommand, python: Option<&str>) -> Result<ShimRequest, String> {
        Ok(ShimRequest::Act { verb, python: python.map(OsString::from) })
    }

    #[test]
    fn shim_arguments_are_accepted_in_any_order() {
        assert_eq!(read("on"), act(ShimCommand::On, None));
        assert_eq!(read("off --python /a/python"), act(ShimCommand::Off, Some("/a/python")));
        assert_eq!(read("--python=/a/python on"), act(ShimCommand::On, Some("/a/python")));
        assert_eq!(read("--json status"), act(ShimCommand::Status(Format::Json), None));
        assert_eq!(read("status"), act(ShimCommand::Status(Format::Table), None));
        assert_eq!(read("on --help"), Ok(ShimRequest::Help));
    }

    #[test]
    fn unknown_shim_argument_is_named() {
        for (line, part) in [
            ("", "on, off or status"),
            ("--json", "on, off or status"),
            ("of", "`of`"),
            ("on off", "`off`"),
            ("on --json", "`--json`"),
            ("on --python", "--python"),
            ("status --jason", "`--jason`"),
        ] {
            let error = read(line).unwrap_err();
            assert!(error.contains(part), "`{line}`: {error}");
        }
    }
}
