//! The file of `--report`. Pure.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use super::setting::{Expected, Origin};

/// Where the report of the job is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportFile(pub PathBuf);

const REPORT_FILE: Expected = Expected::new("the path of a file", "report.json").advised(advise_report_file);

/// The hint for `-`, which many programs read as standard output.
fn advise_report_file(_origin: &Origin, text: &str) -> Option<String> {
    let is_stdout = text == "-";
    is_stdout
        .then(|| "standard output has the lines of the workers: name a file, as `report.json`".to_owned())
}

impl FromStr for ReportFile {
    type Err = Expected;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_file = !text.is_empty() && text != "-" && !text.ends_with('/');
        if is_file { Ok(Self(PathBuf::from(text))) } else { Err(REPORT_FILE) }
    }
}

impl fmt::Display for ReportFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

impl Serialize for ReportFile {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_file_is_a_path_and_not_standard_output() {
        assert_eq!("a/report.json".parse::<ReportFile>().unwrap(), ReportFile("a/report.json".into()));
        assert!("./-".parse::<ReportFile>().is_ok());
        for text in ["", "-", "folder/"] {
            assert!(text.parse::<ReportFile>().is_err(), "`{text}`");
        }
        let origin = Origin::Option("report");
        let hint = (REPORT_FILE.advice)(&origin, "-").unwrap();
        assert!(hint.contains("`report.json`"), "{hint}");
        assert_eq!((REPORT_FILE.advice)(&origin, "folder/"), None);
    }
}
