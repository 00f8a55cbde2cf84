//! The rendezvous of a job of one node. A round is complete as soon as this node joins it: there is no thread, no
//! connection and no wait.

use rankrun_contract::rank::LocalWorldSize;

use super::RendezvousEvent;
use super::error::RendezvousError;
use super::training_store::TrainingStore;
use crate::blocking::BlockingCall;
use crate::store::StoreError;
use rankrun_core::rendezvous::{RendezvousCommand, Round};

/// The rounds of one node, and their training store.
#[derive(Debug)]
pub struct LocalRendezvous {
    training_store: TrainingStore,
    /// The number of the next round.
    next_round: u64,
}

impl LocalRendezvous {
    /// Rounds in this training store, which is still unused.
    #[must_use]
    pub const fn new(training_store: TrainingStore) -> Self {
        Self { training_store, next_round: 0 }
    }

    /// Starts to empty the training store, if it has been used. The call has to end before this node joins the next
    /// round.
    pub(crate) fn start_reset(&self) -> Option<Result<BlockingCall<Result<(), StoreError>>, StoreError>> {
        (self.next_round > 0).then(|| self.training_store.start_reset())?
    }

    /// The event that answers the command. A command that only tells other nodes something has no answer.
    pub fn answer(&mut self, command: &RendezvousCommand) -> Option<RendezvousEvent> {
        match command {
            RendezvousCommand::Join { workers, .. } => Some(match self.complete_round(*workers) {
                Ok(round) => {
                    let training_server = self.training_store.server().cloned();
                    RendezvousEvent::Joined { round: Box::new(round), training_server, evidence_board: None }
                }
                Err(error) => RendezvousEvent::Failed(error),
            }),
            RendezvousCommand::FindLostNode => Some(RendezvousEvent::LostNodeFound(None)),
            RendezvousCommand::Succeeded => Some(RendezvousEvent::AllSucceeded),
            RendezvousCommand::Failed(_) | RendezvousCommand::Stopping { .. } => None,
        }
    }

    /// The next round. The training store is empty.
    fn complete_round(&mut self, workers: LocalWorldSize) -> Result<Round, RendezvousError> {
        let master = self.training_store.open()?;
        let number = self.next_round;
        self.next_round += 1;
        Ok(Round { number, ..Round::of_one_node(workers, master) })
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::time::Duration;

    use rankrun_contract::rank::{NodeCount, RunId};

    use super::*;
    use rankrun_core::spec::RendezvousSpec;
    use rankrun_core::spec::rendezvous::NetworkSpec;

    fn open(worker_store: bool) -> LocalRendezvous {
        let run_id = RunId("job".to_owned());
        let spec = RendezvousSpec::Standalone { run_id, local_addr: None, worker_store };
        LocalRendezvous::new(TrainingStore::open_local(&spec, &NetworkSpec::default()).unwrap())
    }

    fn join(rendezvous: &mut LocalRendezvous) -> (Round, bool) {
        let workers = LocalWorldSize::new(3).unwrap();
        match rendezvous.answer(&RendezvousCommand::Join { workers, leaves_if_possible: false }) {
            Some(RendezvousEvent::Joined { round, training_server, .. }) => {
                (*round, training_server.is_some())
            }
            answer => panic!("{answer:?}"),
        }
    }

    #[test]
    fn join_completes_round_at_once_in_empty_store() {
        let mut rendezvous = open(false);
        let (first, has_server) = join(&mut rendezvous);
        assert_eq!((first.number, first.nodes, first.world_size.get()), (0, NodeCount::ONE, 3));
        assert!(has_server && open(false).start_reset().is_none(), "the first round has an empty store");
        let mut worker = TcpStream::connect((first.master.addr.as_str(), first.master.port)).unwrap();
        let reset = rendezvous.start_reset().expect("an own server").unwrap();
        reset.wait(Duration::from_secs(60)).expect("an answer").unwrap();
        let (second, _) = join(&mut rendezvous);
        assert_eq!((second.number, &second.master), (1, &first.master));
        assert_eq!(std::io::Read::read(&mut worker, &mut [0]).unwrap(), 0, "the round before is over");
    }

    #[test]
    fn worker_hosted_store_has_new_port_in_every_round() {
        let mut rendezvous = open(true);
        let ports = [(); 2].map(|()| join(&mut rendezvous)).map(|(round, has_server)| {
            assert!(!has_server && !round.master.uses_agent_store);
            round.master.port
        });
        assert_ne!(ports[0], ports[1]);
    }

    #[test]
    fn questions_about_other_nodes_are_answered_at_once() {
        let mut rendezvous = open(true);
        let found = rendezvous.answer(&RendezvousCommand::FindLostNode);
        assert!(matches!(found, Some(RendezvousEvent::LostNodeFound(None))), "{found:?}");
        let done = rendezvous.answer(&RendezvousCommand::Succeeded);
        assert!(matches!(done, Some(RendezvousEvent::AllSucceeded)), "{done:?}");
        let answer = rendezvous.answer(&RendezvousCommand::Stopping { why: "SIGTERM".to_owned() });
        assert!(answer.is_none(), "{answer:?}");
    }
}
