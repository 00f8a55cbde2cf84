//! The master address of a round: published, read, and its store emptied of the keys of the round before.
#![expect(clippy::disallowed_methods, reason = "a shell: it reads the clock for the limits of its own waits")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rankrun_contract::env::Master;
use rankrun_contract::rank::NodeRank;

use super::{AssignRanksError, RankExchange, call_store, name};
use crate::rendezvous::error::RendezvousError;
use crate::rendezvous::training_store::TrainingStore;
use crate::store::client::{Client, ClientError, ClientSettings};
use rankrun_core::rendezvous::NodeName;
use rankrun_core::rendezvous::keys::RoundKeys;
use rankrun_core::rendezvous::torchrun_compat::{
    MasterChoice, PublishedAddress, StaleMasterAddress, delegate,
};

/// Number of rounds before this one in which an address is looked for.
const MAX_PAST: usize = 64;

/// How long another member's store may take for one answer.
const ANSWER: Duration = Duration::from_secs(1);

/// Time limits of the attempts to reach another member's store: the first, and the longest.
const ATTEMPTS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(4));

/// The pause between two attempts to empty it.
const RETRY: Duration = Duration::from_millis(20);

/// What rank 0 does when every member has joined, so that no worker finds keys of an earlier round.
#[derive(Debug)]
pub(super) enum StoreRefresh {
    /// Nothing: it is another member's part.
    None,
    /// Resets this node's store.
    ResetOwn,
    /// Deletes every key of another member's store.
    EmptyOther(PublishedAddress),
}

impl StoreRefresh {
    pub(super) async fn perform(&self, exchange: &RankExchange) -> Result<(), AssignRanksError> {
        match self {
            Self::None => Ok(()),
            Self::ResetOwn => Ok(call_store(&exchange.training_store, |store| store.reset()).await?),
            Self::EmptyOther(place) => empty_store(exchange, place).await,
        }
    }
}

/// The variant of the training store.
enum StoreKind {
    OwnServer,
    WorkerRank0,
    Shared,
}

impl StoreKind {
    const fn of(store: &TrainingStore) -> Self {
        match store {
            TrainingStore::OwnServer(_) => Self::OwnServer,
            TrainingStore::WorkerRank0(_) => Self::WorkerRank0,
            TrainingStore::Shared(_) => Self::Shared,
        }
    }
}

/// The master address, once all members that can say it have said it.
pub(super) async fn agree(
    exchange: &RankExchange,
    store: &mut Client,
) -> Result<(Master, StoreRefresh), AssignRanksError> {
    let is_rank_zero = exchange.node_rank == NodeRank(0);
    let keys = exchange.keys.round(exchange.round);
    let own = &exchange.training_store;
    let kind = StoreKind::of(&*own.lock().await);
    match kind {
        StoreKind::OwnServer => {}
        // torchrun reads the address of a store that workers open in every round.
        StoreKind::WorkerRank0 if is_rank_zero => {
            let master = call_store(own, TrainingStore::open).await?;
            publish(store, &keys, &PublishedAddress::from(&master)).await?;
            return Ok((master, StoreRefresh::None));
        }
        StoreKind::WorkerRank0 => {
            let place = read_address(exchange, store, &keys).await?;
            return Ok((place.master(false), StoreRefresh::None));
        }
        StoreKind::Shared => {
            let refresh = if is_rank_zero { StoreRefresh::ResetOwn } else { StoreRefresh::None };
            return Ok((call_store(own, TrainingStore::open).await?, refresh));
        }
    }
    let (members, cache) = (&exchange.members, &exchange.address_cache);
    let needs_history = cache.lock().needs_history(exchange.round, members);
    if needs_history {
        let published = read_history(exchange, store).await?;
        cache.lock().learn_history(exchange.round, &published);
    }
    let (rank_zero, rank_zero_descriptor) = &members[0];
    let is_torch_rank_zero = rank_zero_descriptor.is_none();
    let (place, refresh, host) = if is_rank_zero {
        let (place, refresh) = choose_address(exchange).await?;
        publish(store, &keys, &place).await?;
        let host = matches!(refresh, StoreRefresh::ResetOwn).then_some(rank_zero);
        (place, refresh, host)
    } else if is_torch_rank_zero && delegate(members) == Some(exchange.node_rank.index()) {
        let place = publish_for_torch(exchange, store, &keys).await?;
        check_cached(exchange, &place)?;
        empty_store(exchange, &place).await?;
        (place, StoreRefresh::None, Some(rank_zero))
    } else {
        if !is_torch_rank_zero {
            let predicted = cache.lock().predict(rank_zero, members);
            predicted.map_err(|refusal| moved(exchange, &refusal, &name(members, 0).to_string()))?;
        }
        let host = is_torch_rank_zero.then_some(rank_zero);
        (read_address(exchange, store, &keys).await?, StoreRefresh::None, host)
    };
    check_cached(exchange, &place)?;
    cache.lock().record_round_address(members, &place, host);
    Ok((place.master(true), refresh))
}

/// Fails if a torchrun member has cached another address.
fn check_cached(exchange: &RankExchange, place: &PublishedAddress) -> Result<(), RendezvousError> {
    let checked = exchange.address_cache.lock().check(&exchange.members, place);
    checked.map_err(|refusal| moved(exchange, &refusal, &place.to_string()))
}

/// As rank 0: chooses the address.
async fn choose_address(
    exchange: &RankExchange,
) -> Result<(PublishedAddress, StoreRefresh), AssignRanksError> {
    let members = &exchange.members;
    let choice = exchange.address_cache.lock().choose(&members[0].0, members);
    match choice {
        Ok(MasterChoice::Own) => {
            let place =
                PublishedAddress::from(&call_store(&exchange.training_store, TrainingStore::open).await?);
            // Before any member reads it.
            check_cached(exchange, &place)?;
            Ok((place, StoreRefresh::ResetOwn))
        }
        Ok(MasterChoice::Stay(place)) => Ok((place.clone(), StoreRefresh::EmptyOther(place))),
        Err(refusal) => Err(moved(exchange, &refusal, &name(members, 0).to_string()).into()),
    }
}

/// Does for a torchrun rank 0 what it does only once: publishes the address of its store.
async fn publish_for_torch(
    exchange: &RankExchange,
    store: &mut Client,
    keys: &RoundKeys,
) -> Result<PublishedAddress, AssignRanksError> {
    // It publishes its address, if at all, before this key.
    if !store.wait(&[&keys.role_info(NodeRank(0))], Instant::now() + exchange.read_timeout).await? {
        return Err(no_answer(exchange, "number of workers").into());
    }
    if store.check(&[&keys.master_addr(), &keys.master_port()]).await? {
        return read_address(exchange, store, keys).await;
    }
    let rank_zero = &exchange.members[0].0;
    let store_of = |published: &BTreeMap<u64, PublishedAddress>| {
        exchange.address_cache.lock().store_of(rank_zero, exchange.round, published)
    };
    let known = store_of(&BTreeMap::new());
    let place = match known {
        Some(place) => Some(place),
        None => store_of(&read_history(exchange, store).await?),
    };
    let place = place.ok_or_else(|| RendezvousError::MasterUnknown { node: name(&exchange.members, 0) })?;
    publish(store, keys, &place).await?;
    Ok(place)
}

async fn publish(store: &mut Client, keys: &RoundKeys, place: &PublishedAddress) -> Result<(), ClientError> {
    store.set(&keys.master_addr(), place.addr.as_bytes()).await?;
    store.set(&keys.master_port(), place.port.to_string().as_bytes()).await
}

async fn read_address(
    exchange: &RankExchange,
    store: &mut Client,
    keys: &RoundKeys,
) -> Result<PublishedAddress, AssignRanksError> {
    let (addr, port) = (keys.master_addr(), keys.master_port());
    let what = "address of the workers' store";
    if !store.wait(&[&addr, &port], Instant::now() + exchange.read_timeout).await? {
        return Err(no_answer(exchange, what).into());
    }
    let values = store.multi_get(&[&addr, &port]).await?;
    let place =
        values.first().zip(values.get(1)).and_then(|(addr, port)| PublishedAddress::parse(addr, port));
    let unreadable = RendezvousError::Unreadable {
        what: "the address of the workers' store",
        node: name(&exchange.members, 0),
    };
    Ok(place.ok_or(unreadable)?)
}

/// The addresses that were published in the rounds before this one.
async fn read_history(
    exchange: &RankExchange,
    store: &mut Client,
) -> Result<BTreeMap<u64, PublishedAddress>, ClientError> {
    let listed = store.list_keys().await?;
    let mut rounds: Vec<u64> =
        listed.iter().filter_map(|key| exchange.keys.round_of_master_addr(key)).collect();
    rounds.retain(|round| *round < exchange.round);
    rounds.sort_unstable();
    let past = &rounds[rounds.len().saturating_sub(MAX_PAST)..];
    let keys: Vec<String> = past
        .iter()
        .map(|round| exchange.keys.round(*round))
        .flat_map(|keys| [keys.master_addr(), keys.master_port()])
        .collect();
    if keys.is_empty() {
        return Ok(BTreeMap::new());
    }
    let values = store.multi_get(&keys.iter().map(String::as_str).collect::<Vec<_>>()).await?;
    let places = values.chunks_exact(2).map(|pair| PublishedAddress::parse(&pair[0], &pair[1]));
    Ok(past.iter().zip(places).filter_map(|(round, place)| Some((*round, place?))).collect())
}

/// Deletes every key of another member's store: no worker uses it, since every member has joined the new round. Tries
/// again until the time limit. If the member dies meanwhile, the rendezvous drops the whole exchange.
async fn empty_store(exchange: &RankExchange, place: &PublishedAddress) -> Result<(), AssignRanksError> {
    let deadline = Instant::now() + exchange.read_timeout;
    let mut limit = ATTEMPTS.0;
    loop {
        match try_to_empty(exchange, place, limit).await {
            Ok(()) => return Ok(()),
            Err(source) if Instant::now() >= deadline => {
                return Err(RendezvousError::NotEmptied { place: place.to_string(), source }.into());
            }
            Err(error) => tracing::debug!(%error, %place, "the workers' store cannot be emptied yet"),
        }
        tokio::time::sleep(RETRY).await;
        // The member may be far away.
        limit = (limit * 2).min(ATTEMPTS.1);
    }
}

async fn try_to_empty(
    exchange: &RankExchange,
    place: &PublishedAddress,
    limit: Duration,
) -> Result<(), ClientError> {
    let addresses = (exchange.resolve)(&place.addr, place.port).await?;
    let settings = ClientSettings { nonce: exchange.nonce, answer: ANSWER, silence: exchange.read_timeout };
    let mut store = Client::connect_within(&addresses, settings, limit).await?;
    for key in store.list_keys().await? {
        // Neither torch nor rankrun writes keys of another kind.
        if let Ok(key) = std::str::from_utf8(&key) {
            store.delete(key).await?;
        }
    }
    Ok(())
}

fn no_answer(exchange: &RankExchange, what: &'static str) -> RendezvousError {
    let nodes = vec![name(&exchange.members, 0)];
    RendezvousError::NoAnswer { what, nodes, waited: exchange.read_timeout }
}

fn moved(exchange: &RankExchange, refusal: &StaleMasterAddress, now: &str) -> RendezvousError {
    let members = &exchange.members;
    let index = members.iter().position(|(node, _)| *node == refusal.peer);
    let of_peer = || NodeName::of_node(&refusal.peer, None, None);
    RendezvousError::MasterMoved {
        peer: Box::new(index.map_or_else(of_peer, |index| name(members, index))),
        cached: refusal.cached_address.to_string(),
        now: now.to_owned(),
    }
}
