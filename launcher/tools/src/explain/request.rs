//! The question of `rankrun explain`: a launch, and where each of its settings was set. Pure.

use std::ffi::OsString;

use rankrun_contract::rank::LocalRank;

use rankrun_core::notice::Notice;
use rankrun_core::spec::LaunchSpec;
use rankrun_core::spec::setting::{Origin, Setting};

/// A launch that is only to be explained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExplainRequest {
    /// What would be launched.
    pub spec: LaunchSpec,
    /// What the launch would say once.
    pub notices: Vec<Notice>,
    /// Where its settings were set.
    pub origins: Origins,
    /// The form of the answer.
    pub form: ExplainForm,
}

/// The form of an explanation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExplainForm {
    /// For people: the settings that differ from their defaults.
    Brief,
    /// `--all`: every setting.
    Full,
    /// `--json`
    Json,
    /// `--script`: a shell script that runs this worker.
    Script(LocalRank),
}

/// What was said of settings, by the long names of options, or the keys of a file that no option stands for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Origins {
    /// All that was said: typed options from the last one to the first, then variables, then the file.
    pub given: Vec<(&'static str, Setting<OsString>)>,
    /// The options of a launch.
    pub options: Vec<KnownOption>,
}

/// An option of a launch, as it is where nothing sets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownOption {
    /// The long name.
    pub name: &'static str,
    /// The value of a flag.
    pub flag: Option<&'static str>,
    /// The default as the help says it.
    pub default: Option<String>,
}

impl Origins {
    /// What was said of a setting that has several names, what counts first: the one typed last, then the first name
    /// that has its variable, then the first that a file has.
    #[must_use]
    pub fn of_setting(&self, names: &[&str]) -> Vec<&Setting<OsString>> {
        let place = |long: &str| names.iter().position(|name| *name == long);
        let found = self.given.iter().filter_map(|(long, setting)| Some((place(long)?, setting)));
        let mut found: Vec<_> = found.collect();
        found.sort_by_key(|(place, setting)| match setting.origin {
            Origin::Option(_) => (0, 0),
            Origin::Variable(_) => (1, *place),
            Origin::File(_) => (2, *place),
        });
        found.into_iter().map(|(_, setting)| setting).collect()
    }
}
