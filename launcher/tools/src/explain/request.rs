//! The question of `rankrun explain`: a launch, and where each of its settings was set. Pure.

use std::collections::BTreeMap;
use std::ffi::OsString;

use serde::Serialize;

use rankrun_contract::rank::LocalRank;

use super::Text;
use rankrun_core::notice::Notice;
use rankrun_core::shell::quote::for_people;
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
    /// For a command line of another launcher.
    pub read_as: Option<ReadAs>,
}

/// The command line of rankrun that another launcher's was translated into.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReadAs {
    /// The variables that it sets, or removes where there is no value.
    pub environment: BTreeMap<String, Option<Text>>,
    /// The words, from `rankrun` on.
    pub command: Vec<Text>,
}

impl ReadAs {
    /// The words, as a shell reads them.
    #[must_use]
    pub fn command_line(&self) -> String {
        self.command.iter().map(|word| for_people(&word.0)).collect::<Vec<_>>().join(" ")
    }

    /// Whether the text names an option that the user did not type.
    #[must_use]
    pub fn explains(&self, text: &str) -> bool {
        let names = self.command.iter().filter_map(|word| word.0.to_str()?.split('=').next());
        names.filter(|name| name.len() > 2 && name.starts_with("--")).any(|name| text.contains(name))
    }
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
