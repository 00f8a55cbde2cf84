//! The question of `rankrun explain`: a launch, and where each of its settings was set. Pure.

use rankrun_contract::rank::LocalRank;

use rankrun_core::notice::Notice;
use rankrun_core::spec::LaunchSpec;
use rankrun_core::spec::setting::Origin;

/// A launch that is only to be explained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExplainRequest {
    /// What would be launched.
    pub spec: LaunchSpec,
    /// What the launch would say once.
    pub notices: Vec<Notice>,
    /// Where its settings were set.
    pub origins: Origins,
    /// Whether its run id is another one at each launch.
    pub run_id: RunIdLife,
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

/// Whether two launches by the same command line have the same run id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunIdLife {
    /// It was given, or is torch's `none`.
    Fixed,
    /// It is made up at each launch.
    Fresh,
}

/// Where options were set, by their long names. The rest has its default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Origins {
    /// Where the values that count were set: typed ones in their order, then variables, then the file.
    pub effective: Vec<(&'static str, Origin)>,
    /// Where other values of the same options were set, which do not count.
    pub overridden: Vec<(&'static str, Origin)>,
}

impl Origins {
    /// Where a setting that several options have was set: by the one typed last, else by the first that has its
    /// variable, else by the first that a file has.
    #[must_use]
    pub fn of_setting(&self, options: &[&str]) -> Option<Origin> {
        let is_typed = |origin: &Origin| matches!(origin, Origin::Option(_));
        let typed =
            self.effective.iter().rev().find(|(long, origin)| is_typed(origin) && options.contains(long));
        let first = |is_place: fn(&Origin) -> bool| {
            options.iter().find_map(|option| {
                self.effective.iter().find(|(long, origin)| long == option && is_place(origin))
            })
        };
        let found = typed
            .or_else(|| first(|origin| matches!(origin, Origin::Variable(_))))
            .or_else(|| first(|origin| matches!(origin, Origin::File(_))));
        found.map(|(_, origin)| origin.clone())
    }
}
