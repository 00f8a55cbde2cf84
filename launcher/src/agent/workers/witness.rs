//! What the worker group knows of failures: ends, error files, last lines.

use std::path::PathBuf;

use rankrun_contract::rank::{LocalRank, Rank};
use rankrun_contract::report::ErrorFile;
use rankrun_contract::report::cut::{cut, is_cut};

use super::Workers;
use crate::agent::card::{self, Evidence};
use crate::agent::failure::{Failure, Lost, Testimony};
use crate::agent::message::WorkerEnd;
use crate::facts::short_hostname;
use crate::placement::WorkerId;
use crate::process::child::WorkerExit;
use crate::rendezvous::FailureNote;

/// A longer message is cut for the other nodes, in bytes.
const NOTE_TEXT: usize = 1600;

/// The last line of a message, or both ends of a long message.
fn short(message: &str) -> Option<String> {
    let last = message.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
    let is_long = is_cut(message) || last.len() > NOTE_TEXT;
    Some(if is_long { cut(message.trim(), NOTE_TEXT).into_owned() } else { last.to_owned() })
}

impl Workers {
    /// What is known of a failure of the last generation; after [`Self::drain`].
    pub(in crate::agent) fn evidence(&self, failure: &Failure) -> Evidence<'_> {
        let local_rank = failure.first.local_rank;
        Evidence {
            placements: &self.placements,
            round: self.round.as_ref(),
            started: self.started,
            spec: &self.spec,
            attempt: self.attempt.as_ref(),
            error_files: &self.error_files,
            tail: self.logs.tail(WorkerId { generation: failure.generation, local_rank }),
        }
    }

    /// What a worker that failed has written about it; kept until the next generation.
    pub(in crate::agent) fn testimony(&mut self, exit: &WorkerExit) -> Option<Testimony> {
        let local_rank = exit.worker.local_rank;
        let attempt = self.attempt.as_ref().filter(|_| !exit.exit.is_success())?;
        let (file, written) = card::error_file(&attempt.error_file(local_rank))?;
        let lost = file.report.lost_rank.map(|rank| self.lost(rank));
        self.error_files.insert(local_rank, file);
        Some(Testimony { written, lost })
    }

    /// What the other nodes are told of a failure.
    pub(in crate::agent) fn note_of(&self, end: &WorkerEnd) -> Option<FailureNote> {
        let round = self.round.as_ref()?;
        let seat = self.placements.get(end.local_rank.index())?;
        let file = self.error_files.get(&end.local_rank);
        let message = file.and_then(|file| short(&file.report.message));
        Some(FailureNote {
            node_rank: round.node_rank,
            host: short_hostname(),
            rank: seat.rank,
            local_rank: end.local_rank,
            pid: end.pid.as_raw(),
            ended: end.exit.to_string(),
            message,
        })
    }

    /// What the other nodes are told where the launcher itself has failed in a round.
    pub(in crate::agent) fn note_of_launcher(&self, why: String) -> Option<FailureNote> {
        let node_rank = self.round.as_ref()?.node_rank;
        Some(FailureNote::of_failed_launcher(node_rank, short_hostname(), why))
    }

    fn lost(&self, rank: Rank) -> Lost {
        let seat = self.placements.iter().find(|seat| seat.rank == rank);
        seat.map_or(Lost::Elsewhere(rank), |seat| Lost::Here(seat.local_rank))
    }

    /// The error file that this worker wrote, and where.
    pub(in crate::agent) fn error_file(&self, local_rank: LocalRank) -> Option<(&ErrorFile, PathBuf)> {
        let path = self.attempt.as_ref()?.error_file(local_rank);
        Some((self.error_files.get(&local_rank)?, path))
    }
}
