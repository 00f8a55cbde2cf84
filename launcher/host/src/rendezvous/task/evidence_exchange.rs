//! Carries what the nodes of a round tell each other of their ranks, by a task and a connection of its own: no heartbeat and no
//! change of the round waits for it. A failure is tried again with the next evidence.

use std::sync::Arc;

use tokio::task::JoinHandle;

use crate::hang::board::EvidenceBoard;
use crate::store::client::{Client, ClientError};
use rankrun_core::rendezvous::keys::RendezvousKeys;

use super::assigning::ExchangeConnection;

/// The running task. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct EvidenceExchange {
    task: JoinHandle<()>,
}

impl EvidenceExchange {
    pub(super) fn start(
        board: Arc<EvidenceBoard>,
        connection: ExchangeConnection,
        keys: RendezvousKeys,
    ) -> Self {
        Self { task: tokio::spawn(exchange(board, connection, keys)) }
    }
}

impl Drop for EvidenceExchange {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn exchange(board: Arc<EvidenceBoard>, connection: ExchangeConnection, keys: RendezvousKeys) {
    let own = keys.evidence(board.node_rank());
    let nodes = board.other_nodes();
    let names: Vec<String> = nodes.iter().map(|node| keys.evidence(*node)).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut client = None;
    loop {
        let (published, wants_others) = board.next_published().await;
        let wanted = if wants_others { names.as_slice() } else { &[] };
        match exchange_once(&mut client, &connection, (&own, &published), wanted).await {
            Ok(values) => nodes.iter().zip(values).for_each(|(node, json)| board.receive(*node, json)),
            Err(error) => {
                tracing::debug!(%error, "the evidence of the nodes is not exchanged");
                client = None;
            }
        }
    }
}

async fn exchange_once(
    client: &mut Option<Client>,
    connection: &ExchangeConnection,
    (own, published): (&str, &[u8]),
    names: &[&str],
) -> Result<Vec<Vec<u8>>, ClientError> {
    let client = match client {
        Some(client) => client,
        None => client.insert(connection.clone().open().await?),
    };
    client.set(own, published).await?;
    if names.is_empty() { Ok(Vec::new()) } else { client.multi_get(names).await }
}
