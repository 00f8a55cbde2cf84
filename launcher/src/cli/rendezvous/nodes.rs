//! How many nodes, which of them is this one, and what needs others: `--nnodes`, `--node-rank`.

use rankrun_contract::rank::{NodeCount, NodeRank};

use crate::cli::error::hint_for_nodes;
use crate::cli::error::{CliError, Expected, Origin, SettingError};
use crate::cli::python_text::parse_int;
use crate::cli::resolve::refused;
use crate::cli::settings::{Setting, Settings};
use rankrun_core::notice::Notice;
use rankrun_core::spec::CliFlavor;
use rankrun_core::spec::rendezvous::{NodeRange, POD_INDEX};

const NODE_COUNT: Expected =
    Expected::new("a number of nodes from 1 to 65536, or MIN:MAX with MIN ≤ MAX", "2")
        .advised(hint_for_nodes);
const ONLY_NODE_RANK: Expected = Expected::new("0, the only node rank of a job of one node", "0");
const NODE_RANK: Expected = Expected::new("a node rank from 0 to 4294967295", "0");
const INDEX: Expected = Expected::new("the index of a pod, a whole number from 0", "0").advised(|_, _| {
    Some("`--node-rank N` says which node this is, and counts before that variable".to_owned())
});

/// No job has more nodes: their state must fit into one value of the store.
pub(in crate::cli) const MOST_NODES: u32 = 65_536;

/// What `--nnodes` says; one node where it says nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Nodes {
    pub(super) range: NodeRange,
    /// As it was written, where it was.
    setting: Option<Setting<String>>,
}

impl Nodes {
    /// Reads the option.
    ///
    /// # Errors
    /// A text that is neither a number nor a range.
    pub(super) fn of(settings: &Settings<'_>) -> Result<Self, CliError> {
        let Some(Setting { origin, value }) = settings.get(&settings.args.torchrun.nnodes) else {
            return Ok(Self { range: NodeRange::ONE, setting: None });
        };
        match parse_nodes(&value) {
            None => Err(refused(origin, value, NODE_COUNT)),
            Some(range) => Ok(Self { range, setting: Some(Setting { origin, value }) }),
        }
    }

    /// Checks that the job can run on one node: no other node knows the port of its store.
    ///
    /// # Errors
    /// Where the job needs them: torchrun waits for them in vain.
    pub(super) fn check_single_node(&self, notices: &mut Vec<Notice>) -> Result<(), CliError> {
        let Some(Setting { origin, value }) = self.setting.clone().filter(|_| self.range.allows_many())
        else {
            return Ok(());
        };
        if self.range.min != NodeCount::ONE {
            let problem = "and no other node can find a store on a free port";
            let hint = "name a place that all nodes know: `--rdzv-backend c10d --rdzv-endpoint HOST:PORT`";
            return Err(SettingError::of_value(origin, value, problem, hint).into());
        }
        notices.push(Notice::Alone { origin, value });
        Ok(())
    }

    /// A fixed number of nodes: the largest.
    pub(super) fn fixed(&self, notices: &mut Vec<Notice>) -> NodeCount {
        let NodeRange { min, max } = self.range;
        if let Some(Setting { origin, value }) = self.setting.clone().filter(|_| min != max) {
            notices.push(Notice::AllNodes { origin, value, nodes: max });
        }
        max
    }
}

/// Checks that the job can run on one node: in place of an empty run id each node makes up its own, as under torchrun.
///
/// # Errors
/// Where the job needs more nodes, which torchrun waits for in vain; in our own words wherever more may come, since
/// each would run the whole job for itself.
pub(super) fn check_empty_run_id(
    origin: &Origin,
    NodeRange { min, max }: NodeRange,
    cli_flavor: CliFlavor,
) -> Result<(), CliError> {
    let least = match cli_flavor {
        CliFlavor::Rankrun => max,
        CliFlavor::Torchrun => min,
    };
    if least == NodeCount::ONE {
        return Ok(());
    }
    let nodes = if min == max { max.to_string() } else { format!("{min} to {max}") };
    let problem =
        format!("is empty, and each of {nodes} nodes would make up a run id that no other node has");
    let hint = "give all nodes the same name, as in `--rdzv-id NAME`";
    Err(SettingError::of_origin(origin.clone(), problem, hint).into())
}

/// `N` or `MIN:MAX` with `0 < MIN ≤ MAX`.
pub(in crate::cli) fn parse_nodes(text: &str) -> Option<NodeRange> {
    let (min, max) = text.split_once(':').unwrap_or((text, text));
    let count = |text| {
        let number = u32::try_from(parse_int(text)?).ok().filter(|number| *number <= MOST_NODES)?;
        NodeCount::new(number)
    };
    let (min, max) = (count(min)?, count(max)?);
    (min <= max).then_some(NodeRange { min, max })
}

/// The index of this pod in an Indexed Job of Kubernetes, under our own name: torchrun reads no such variable.
///
/// # Errors
/// A text that is not a whole number.
pub(super) fn pod_index(settings: &Settings<'_>) -> Result<Option<Setting<i128>>, CliError> {
    let own = settings.cli_flavor == CliFlavor::Rankrun;
    let Some(value) = settings.facts.filled_variable(POD_INDEX).filter(|_| own) else { return Ok(None) };
    let origin = Origin::Variable(POD_INDEX.to_owned());
    let digits = value.to_str().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    match digits.and_then(|digits| digits.parse().ok()) {
        Some(index) => Ok(Some(Setting { origin, value: index })),
        None => Err(refused(origin, value.to_string_lossy(), INDEX)),
    }
}

/// Each pod of several would look for the store on itself.
///
/// # Errors
/// This is a pod of an Indexed Job.
pub(super) fn refuse_pod_without_address(
    settings: &Settings<'_>,
    variable: &str,
    port: &str,
) -> Result<(), CliError> {
    let Some(Setting { origin, value }) = pod_index(settings)? else { return Ok(()) };
    let problem =
        format!("and `{variable}` does not name pod 0, which hosts the store: no pod would find it");
    let hint = format!(
        "set it to JOB-0.SERVICE{port}, as in `{variable}=train-0.train{port}`; for separate jobs add `--nnodes 1`"
    );
    Err(SettingError::of_value(origin, value, problem, hint).into())
}

/// The rank of this node in a job of `nodes` nodes; torchrun's 0 where it is not given.
///
/// # Errors
/// A rank that no node of the job has.
pub(super) fn rank_among(given: Option<Setting<i128>>, nodes: NodeCount) -> Result<NodeRank, CliError> {
    let Some(Setting { origin, value }) = given else { return Ok(NodeRank(0)) };
    match u32::try_from(value) {
        Ok(rank) if rank < nodes.get() => Ok(NodeRank(rank)),
        _ if nodes == NodeCount::ONE => Err(refused(origin, value.to_string(), ONLY_NODE_RANK)),
        _ => {
            let last = nodes.get() - 1;
            let problem = format!("and the node ranks of a job of {nodes} nodes are 0 to {last}");
            let hint = match &origin {
                Origin::Variable(name) if name == POD_INDEX => {
                    "`--nnodes` (`PET_NNODES`) is the number of pods, `completions` of the Job; `--node-rank N` counts before \
                     that variable"
                }
                _ => "node ranks count from 0, below `--nnodes`; each node has another one",
            };
            Err(SettingError::of_value(origin, value, problem, hint).into())
        }
    }
}

/// The rank of this node where it only orders the nodes.
///
/// # Errors
/// A number that is not a rank.
pub(super) fn rank_in_order(given: Option<Setting<i128>>) -> Result<Option<NodeRank>, CliError> {
    let Some(Setting { origin, value }) = given else { return Ok(None) };
    match u32::try_from(value) {
        Ok(rank) => Ok(Some(NodeRank(rank))),
        Err(_) => Err(refused(origin, value.to_string(), NODE_RANK)),
    }
}
