//! The keys that this launcher reads or writes in a rendezvous store, as they are on the wire. Pure.
//!
//! Contract 5.4 and 5.6 define torch's keys. Keys of rankrun begin with `rankrun/`, which torch's agents never read.
//! The name of another node in a key is escaped and bounded, because it comes from the network.

use std::fmt::Write as _;

use rankrun_contract::rank::{NodeRank, RunId};

use super::state::Node;

/// The prefix that torch's clients put before every key.
const WIRE: &str = "/";

/// Longest escaped node name in a key, in bytes. The rest of a longer name is replaced by a checksum.
const MAX_NAME: usize = 256;

/// The keys of one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RendezvousKeys {
    /// Key of the shared state.
    state: String,
    /// Prefix of torch's keys for a round; the round's number follows.
    rounds: String,
    /// Prefix of all rankrun keys.
    rankrun_prefix: String,
}

impl RendezvousKeys {
    /// Keys of a c10d rendezvous, which torchrun's agents of the same job use too.
    #[must_use]
    pub fn dynamic(run_id: &RunId) -> Self {
        let state = format!("{WIRE}torch.rendezvous.{run_id}");
        Self { rounds: format!("{state}."), rankrun_prefix: format!("{state}/rankrun/"), state }
    }

    /// Keys of a static job with rankrun agents only, except for its first round (see [`RoundKeys::first_of_static`]).
    #[must_use]
    pub fn static_keys(run_id: &RunId) -> Self {
        let own = format!("{WIRE}{run_id}/rankrun/");
        Self { state: format!("{own}state"), rounds: format!("{own}round/"), rankrun_prefix: own }
    }

    /// Key of torch's shared state.
    #[must_use]
    pub fn state(&self) -> &str {
        &self.state
    }

    /// torch's keys of one numbered round.
    #[must_use]
    pub fn round(&self, round: u64) -> RoundKeys {
        RoundKeys { prefix: format!("{}{round}/", self.rounds) }
    }

    /// Parses the round from a [`RoundKeys::master_addr`] key; `None` for other keys.
    #[must_use]
    pub fn round_of_master_addr(&self, key: &[u8]) -> Option<u64> {
        let key = std::str::from_utf8(key).ok()?;
        let round = key.strip_prefix(self.rounds.as_str())?.strip_suffix("/MASTER_ADDR")?;
        let is_number = !round.is_empty() && round.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| round.parse().ok())?
    }

    /// Counter of change notifications.
    #[must_use]
    pub fn version(&self) -> String {
        format!("{}version", self.rankrun_prefix)
    }

    /// Notification key: it is created when [`Self::version`] reaches `version`. Agents wait for it.
    #[must_use]
    pub fn change_key(&self, version: i64) -> String {
        format!("{}{version}", self.rankrun_prefix)
    }

    /// Counter of tickets for agents that lost a compare-and-set. Agents with tickets write in turn.
    #[must_use]
    pub fn write_ticket_counter(&self) -> String {
        format!("{}turns", self.rankrun_prefix)
    }

    /// Created when the agent with this ticket has had its turn.
    #[must_use]
    pub fn write_ticket(&self, number: i64) -> String {
        format!("{}turn/{number}", self.rankrun_prefix)
    }

    /// Random identity of the store, written by the first agent.
    #[must_use]
    pub fn store_identity(&self) -> String {
        format!("{}store", self.rankrun_prefix)
    }

    /// Key of a rankrun agent's descriptor.
    #[must_use]
    pub fn agent(&self, node: &Node) -> String {
        format!("{}agent/{}", self.rankrun_prefix, node_key_name(node))
    }

    /// An agent's heartbeat, a counter that it increments.
    #[must_use]
    pub fn heartbeat(&self, node: &Node) -> String {
        format!("{}beat/{}", self.rankrun_prefix, node_key_name(node))
    }

    /// The reason that a node gave when it left.
    #[must_use]
    pub fn left(&self, node: &Node) -> String {
        format!("{}left/{}", self.rankrun_prefix, node_key_name(node))
    }

    /// Ranks of the last complete round.
    #[must_use]
    pub fn ranks(&self) -> String {
        format!("{}ranks", self.rankrun_prefix)
    }

    /// The failure that ended this round.
    #[must_use]
    pub fn failure(&self, round: u64) -> String {
        format!("{}{round}/failure", self.rankrun_prefix)
    }

    /// What the ranks of this node have shown of their progress.
    #[must_use]
    pub fn evidence(&self, node_rank: NodeRank) -> String {
        format!("{}evidence/{node_rank}", self.rankrun_prefix)
    }

    /// Created when all workers of a node have succeeded in this round.
    #[must_use]
    pub fn succeeded(&self, round: u64, node: &Node) -> String {
        format!("{}{round}/done/{}", self.rankrun_prefix, node_key_name(node))
    }

    /// Exists if a rankrun agent hosts the store. The host then reports closed connections at once.
    #[must_use]
    pub fn watched(&self) -> String {
        format!("{}watched", self.rankrun_prefix)
    }

    /// The closing note of the job.
    #[must_use]
    pub fn end(&self) -> String {
        format!("{}end", self.rankrun_prefix)
    }

    /// Static job: the claim of the agent that holds a node rank.
    #[must_use]
    pub fn claim(&self, node_rank: NodeRank) -> String {
        format!("{}agent/{node_rank}", self.rankrun_prefix)
    }

    /// Static job with rankrun agents only: the state from which all agents continue.
    #[must_use]
    pub fn rankrun_only(&self) -> String {
        format!("{}alone", self.rankrun_prefix)
    }
}

/// torch's keys of one round, under one prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoundKeys {
    prefix: String,
}

impl RoundKeys {
    /// Keys of a static job's first round, which has no number.
    #[must_use]
    pub fn first_of_static(run_id: &RunId) -> Self {
        Self { prefix: format!("{WIRE}{run_id}/") }
    }

    /// Master host name or address of the workers.
    #[must_use]
    pub fn master_addr(&self) -> String {
        format!("{}MASTER_ADDR", self.prefix)
    }

    /// Master TCP port of the workers.
    #[must_use]
    pub fn master_port(&self) -> String {
        format!("{}MASTER_PORT", self.prefix)
    }

    /// What an agent publishes about its workers.
    #[must_use]
    pub fn role_info(&self, node_rank: NodeRank) -> String {
        format!("{}torchelastic/role_info/{node_rank}", self.prefix)
    }

    /// The global ranks assigned to an agent's workers.
    #[must_use]
    pub fn assigned_ranks(&self, node_rank: NodeRank) -> String {
        format!("{}torchelastic/assigned_ranks/{node_rank}", self.prefix)
    }

    /// Counts the agents with only successful workers.
    #[must_use]
    pub fn num_members(&self) -> String {
        format!("{}torchelastic/agent/terminal_state/num_members", self.prefix)
    }

    /// Created when the workers of all agents have succeeded.
    #[must_use]
    pub fn last_member(&self) -> String {
        format!("{}torchelastic/agent/terminal_state/last_member", self.prefix)
    }
}

/// `<addr>_<pid>_<counter>`, with every special byte of the address as `%XX`. Two nodes never have the same name. Above
/// [`MAX_NAME`] bytes a checksum distinguishes them.
fn node_key_name(node: &Node) -> String {
    let mut addr = String::new();
    for byte in node.addr.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b':' | b'-' | b'_' => addr.push(byte.into()),
            byte => write!(addr, "%{byte:02X}").expect("a string takes any text"),
        }
    }
    if addr.len() > MAX_NAME {
        addr.truncate(MAX_NAME);
        write!(addr, "%{:032x}", checksum([node.addr.as_bytes()])).expect("a string takes any text");
    }
    format!("{addr}_{}_{}", node.pid, node.local_id)
}

/// 128-bit FNV-1a over the pieces, with a terminator after each. Distinguishes texts that were not chosen to collide.
pub fn checksum<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let step = |sum: u128, byte: u64| (sum ^ u128::from(byte)).wrapping_mul(PRIME);
    pieces.into_iter().fold(OFFSET, |sum, piece| {
        let sum = piece.iter().fold(sum, |sum, byte| step(sum, u64::from(*byte)));
        // A value that is not a byte: the pieces `ab`, `c` differ from `a`, `bc`.
        step(sum, 256)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn node(addr: &str) -> Node {
        Node { addr: addr.to_owned(), pid: 4711, local_id: 0 }
    }

    fn job() -> RunId {
        RunId("job".to_owned())
    }

    #[test]
    fn torch_keys_match_the_contract() {
        let keys = RendezvousKeys::dynamic(&job());
        assert_eq!(keys.state(), "/torch.rendezvous.job");
        let round = keys.round(7);
        assert_eq!(round.master_addr(), "/torch.rendezvous.job.7/MASTER_ADDR");
        assert_eq!(round.master_port(), "/torch.rendezvous.job.7/MASTER_PORT");
        assert_eq!(round.role_info(NodeRank(3)), "/torch.rendezvous.job.7/torchelastic/role_info/3");
        assert_eq!(
            round.assigned_ranks(NodeRank(0)),
            "/torch.rendezvous.job.7/torchelastic/assigned_ranks/0"
        );
        let end = "/torch.rendezvous.job.7/torchelastic/agent/terminal_state";
        assert_eq!(round.num_members(), format!("{end}/num_members"));
        assert_eq!(round.last_member(), format!("{end}/last_member"));
        assert_eq!(
            RoundKeys::first_of_static(&job()).role_info(NodeRank(1)),
            "/job/torchelastic/role_info/1"
        );
    }

    #[test]
    fn round_is_parsed_from_master_addr_key() {
        let keys = RendezvousKeys::dynamic(&job());
        let round_of = |key: &str| keys.round_of_master_addr(key.as_bytes());
        assert_eq!(round_of(&keys.round(12).master_addr()), Some(12));
        for key in [
            keys.round(12).master_port(),
            keys.state().to_owned(),
            "/torch.rendezvous.job.+1/MASTER_ADDR".to_owned(),
            "/torch.rendezvous.job./MASTER_ADDR".to_owned(),
            "/torch.rendezvous.job.99999999999999999999/MASTER_ADDR".to_owned(),
            "/torch.rendezvous.other.1/MASTER_ADDR".to_owned(),
        ] {
            assert_eq!(round_of(&key), None, "{key}");
        }
    }

    #[test]
    fn rankrun_keys_are_distinct() {
        for keys in [RendezvousKeys::dynamic(&job()), RendezvousKeys::static_keys(&job())] {
            let node = node("th1");
            let all = [
                keys.state().to_owned(),
                keys.round(5).master_addr(),
                keys.version(),
                keys.change_key(5),
                keys.store_identity(),
                keys.agent(&node),
                keys.heartbeat(&node),
                keys.left(&node),
                keys.ranks(),
                keys.failure(5),
                keys.succeeded(5, &node),
                keys.end(),
                keys.claim(NodeRank(5)),
                keys.rankrun_only(),
            ];
            assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "{all:?}");
            assert!(all[2..].iter().all(|key| key.contains("/rankrun/")), "{all:?}");
        }
    }

    #[test]
    fn node_names_in_keys_are_escaped() {
        assert_eq!(node_key_name(&node("fe80::1")), "fe80::1_4711_0");
        assert_eq!(node_key_name(&node("a/b%c\né")), "a%2Fb%25c%0A%C3%A9_4711_0");
    }

    #[test]
    fn long_node_names_in_keys_are_bounded_and_distinct() {
        let long = "/".repeat(1 << 20);
        let (one, other) = (node_key_name(&node(&long)), node_key_name(&node(&format!("{long}x"))));
        assert!(one.len() < 512 && one != other, "{} {one} {other}", one.len());
    }

    #[test]
    fn checksum_is_fnv1a() {
        // The published value of FNV-1a 128 for no input; each piece has one more step.
        assert_eq!(checksum([]), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        let sums =
            [checksum([]), checksum([&b""[..]]), checksum([&b"ab"[..], b"c"]), checksum([&b"a"[..], b"bc"])];
        assert_eq!(sums.iter().collect::<BTreeSet<_>>().len(), sums.len());
    }
}
