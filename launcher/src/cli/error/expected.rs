//! What a setting would have accepted, in words.

use std::fmt;

/// What a setting would have accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// `--nproc-per-node`
    WorkerCount,
    /// `--nnodes`
    NodeCount,
    /// `--max-restarts`
    RestartCount,
    /// Seconds above zero.
    Interval,
    /// `--probe-timeout`: seconds, not too few for any library.
    ProbeLimit,
    /// Seconds, zero included.
    Duration,
    /// `--warn-signal`
    WarnSignal,
    /// A span of time above zero.
    Time,
    /// A span of time, zero included.
    TimeOrZero,
    /// How many times longer each wait is.
    Factor,
    /// A share of a whole.
    Share,
    /// A count above zero.
    Count,
    /// Not shorter than `--restart-delay`.
    AtLeastDelay,
    /// A port, 0 included.
    Port,
    /// A port that other nodes know.
    PortOfMany,
    /// The only rank of a job of one node.
    OnlyNodeRank,
    /// A rank that only orders the nodes.
    NodeRank,
    /// `--lease`
    Lease,
    /// `--iface`
    Interface,
    /// `--port-range`
    PortRange,
    /// `--store-limit`
    StoreLimit,
    /// `--nccl-lib`
    Library,
    /// A host name or address.
    Host,
    /// `--rdzv-endpoint`
    Endpoint,
    /// `--rdzv-endpoint` of a rendezvous that has no port of its own.
    EndpointWithPort,
    /// `--rdzv-endpoint` of a static rendezvous of several nodes.
    EndpointOfMany,
    /// `--rdzv-endpoint` that is an IPv6 address.
    BracketedEndpoint,
    /// `--local-ranks-filter`
    LocalRanks,
    /// The name of a rendezvous backend.
    BackendName,
    /// A `--redirects` or `--tee` text.
    Streams {
        /// Whether ranks above 9 can be named.
        any_rank: bool,
    },
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WorkerCount => {
                "a number of workers from 1 to 4194304, `auto`, `cpu`, `gpu` or a type of device such as `xpu`"
            }
            Self::NodeCount => "a number of nodes from 1 to 65536, or MIN:MAX with MIN ≤ MAX",
            Self::RestartCount => "a number of restarts from 0 to 4294967295",
            Self::Interval => "a number of seconds above 0",
            Self::ProbeLimit => "a number of seconds from 0.1 up",
            Self::Duration => "a number of seconds from 0 up",
            Self::WarnSignal => {
                "SIGNAL or SIGNAL@TIME such as `USR1@60`, with a signal that can be handled and a time above 0"
            }
            Self::Time => "a time above 0 such as `90` (seconds), `1.5s`, `5m`, `1h30m` or `1-12:00:00`",
            Self::TimeOrZero => "a time such as `90` (seconds), `1.5s`, `5m`, `1h30m` or `1-12:00:00`",
            Self::Factor => "a number from 1 up",
            Self::Share => "a number from 0 to 1",
            Self::Count => "a number from 1 to 4294967295",
            Self::AtLeastDelay => "as long as the first delay",
            Self::Port => "a port from 0 to 65535",
            Self::PortOfMany => "a port from 1 to 65535, which the other nodes know too",
            Self::NodeRank => "a node rank from 0 to 4294967295",
            Self::Lease => "a time of 2 s or more such as `5s`",
            Self::Interface => "the name of a network interface such as `eth0`",
            Self::PortRange => "two ports from 1 to 65535, the lower one first, as in `29500-29599`",
            Self::StoreLimit => "a size from `1MiB` up, such as `512MiB` or `4GiB`",
            Self::Library => "a file; workers in Rust are to load it as NCCL's library",
            Self::OnlyNodeRank => "0, the only node rank of a job of one node",
            Self::Host => "a host name or an address",
            Self::Endpoint => {
                "HOST or HOST:PORT, with a port from 0 to 65535 and an IPv6 address in brackets"
            }
            Self::EndpointWithPort => "HOST:PORT: a static rendezvous needs the port",
            Self::EndpointOfMany => "HOST:PORT with a port above 0, which the other nodes know too",
            Self::BracketedEndpoint => {
                "clear: an IPv6 address stands in brackets, as in `[::1]:29400`"
            }
            Self::LocalRanks => "a list of local ranks, such as `0,2`",
            Self::BackendName => "the name of a rendezvous backend",
            Self::Streams { any_rank: true } => "0, 1, 2 or 3, or a list such as `0:3,12:1`",
            Self::Streams { any_rank: false } => {
                "0, 1, 2 or 3, or a list such as `0:3,1:2` with ranks of one digit"
            }
        })
    }
}
