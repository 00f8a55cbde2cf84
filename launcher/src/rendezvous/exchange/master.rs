//! Where the workers of a round meet: published, read, and emptied of what the round before has left.
#![expect(clippy::disallowed_methods, reason = "a shell: it reads the clock for the limits of its own waits")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rankrun_contract::env::Master;
use rankrun_contract::rank::NodeRank;

use super::{Exchange, ExchangeError, SLICE, Talk, name};
use crate::rendezvous::NodeName;
use crate::rendezvous::error::RendezvousError;
use crate::rendezvous::keys::RoundKeys;
use crate::rendezvous::torchrun_compat::{
    MasterAddressCache, MasterChoice, PublishedAddress, StaleMasterAddress, delegate,
};
use crate::rendezvous::training_store::TrainingStore;
use crate::store::client::{Client, ClientError, ClientSettings};

/// Rounds before this one in which an address is looked for.
const MAX_PAST: usize = 64;

/// How long another member's store may take for one answer. A sign of life of ours comes as late as that.
const ANSWER: Duration = Duration::from_secs(1);

/// The longest try to reach it.
const LONGEST_TRY: Duration = Duration::from_secs(4);

/// Between two tries to empty it.
const RETRY: Duration = Duration::from_millis(20);

/// What rank 0 does when every member has joined and spoken, so that no worker finds what others have left.
#[derive(Debug)]
pub(super) enum Refresh {
    /// Nothing: it is another member's part.
    No,
    /// Resets this node's store.
    Own,
    /// Deletes every key of another member's store.
    Of(PublishedAddress),
}

impl Refresh {
    pub(super) fn perform(
        &self,
        plan: &Exchange<'_>,
        talk: &mut Talk<'_, '_>,
        training_store: &TrainingStore,
    ) -> Result<(), ExchangeError> {
        match self {
            Self::No => Ok(()),
            Self::Own => Ok(training_store.reset()?),
            Self::Of(place) => empty(plan, talk, place),
        }
    }
}

/// Where the workers meet, once all members that can say it have said it.
pub(super) fn agree(
    plan: &Exchange<'_>,
    talk: &mut Talk<'_, '_>,
    training_store: &mut TrainingStore,
    memory: &mut MasterAddressCache,
) -> Result<(Master, Refresh), ExchangeError> {
    let is_rank_zero = plan.node_rank == NodeRank(0);
    let keys = plan.keys.round(plan.round);
    match training_store {
        TrainingStore::OwnServer(_) => {}
        // torchrun reads the address of a store that workers open in every round.
        TrainingStore::WorkerRank0(_) if is_rank_zero => {
            let master = training_store.open()?;
            publish(talk, &keys, &PublishedAddress::from(&master))?;
            return Ok((master, Refresh::No));
        }
        TrainingStore::WorkerRank0(_) => return Ok((read(plan, talk, &keys)?.master(false), Refresh::No)),
        TrainingStore::Shared(_) => {
            let refresh = if is_rank_zero { Refresh::Own } else { Refresh::No };
            return Ok((training_store.open()?, refresh));
        }
    }
    if memory.needs_history(plan.round, plan.members) {
        memory.learn_history(plan.round, &history(plan, talk)?);
    }
    let rank_zero = &plan.members[0];
    let (place, refresh, host) = if is_rank_zero {
        let (place, refresh) = decide(plan, training_store, memory)?;
        publish(talk, &keys, &place)?;
        let host = matches!(refresh, Refresh::Own).then_some(&rank_zero.0);
        (place, refresh, host)
    } else if rank_zero.1.is_none() && delegate(plan.members) == Some(plan.node_rank.index()) {
        let place = stand_in(plan, talk, &keys, memory)?;
        memory.check(plan.members, &place).map_err(|refusal| moved(plan, &refusal, &place.to_string()))?;
        empty(plan, talk, &place)?;
        (place, Refresh::No, Some(&rank_zero.0))
    } else {
        if rank_zero.1.is_some() {
            let foreseen = memory.predict(&rank_zero.0, plan.members);
            foreseen.map_err(|refusal| moved(plan, &refusal, &name(plan.members, 0).to_string()))?;
        }
        let host = rank_zero.1.is_none().then_some(&rank_zero.0);
        (read(plan, talk, &keys)?, Refresh::No, host)
    };
    memory.check(plan.members, &place).map_err(|refusal| moved(plan, &refusal, &place.to_string()))?;
    memory.record_round_address(plan.members, &place, host);
    Ok((place.master(true), refresh))
}

/// As rank 0.
fn decide(
    plan: &Exchange<'_>,
    training_store: &mut TrainingStore,
    memory: &MasterAddressCache,
) -> Result<(PublishedAddress, Refresh), ExchangeError> {
    let here = || name(plan.members, 0);
    match memory.choose(&plan.members[0].0, plan.members) {
        Ok(MasterChoice::Own) => {
            let place = PublishedAddress::from(&training_store.open()?);
            // Before anybody reads it.
            memory
                .check(plan.members, &place)
                .map_err(|refusal| moved(plan, &refusal, &place.to_string()))?;
            Ok((place, Refresh::Own))
        }
        Ok(MasterChoice::Stay(place)) => Ok((place.clone(), Refresh::Of(place))),
        Err(refusal) => Err(moved(plan, &refusal, &here().to_string()).into()),
    }
}

/// Does for a torchrun rank 0 what it does only once: publishes where its store is.
fn stand_in(
    plan: &Exchange<'_>,
    talk: &mut Talk<'_, '_>,
    keys: &RoundKeys,
    memory: &MasterAddressCache,
) -> Result<PublishedAddress, ExchangeError> {
    // What it publishes, if anything, it publishes before this.
    if !talk.wait(&[&keys.role_info(NodeRank(0))], plan.read_timeout)? {
        return Err(silent(plan, "number of workers").into());
    }
    if talk.store.check(&[&keys.master_addr(), &keys.master_port()])? {
        return read(plan, talk, keys);
    }
    let rank_zero = &plan.members[0].0;
    let place = match memory.store_of(rank_zero, plan.round, &BTreeMap::new()) {
        Some(place) => Some(place),
        None => memory.store_of(rank_zero, plan.round, &history(plan, talk)?),
    };
    let place = place.ok_or_else(|| RendezvousError::MasterUnknown { node: name(plan.members, 0) })?;
    publish(talk, keys, &place)?;
    Ok(place)
}

fn publish(talk: &mut Talk<'_, '_>, keys: &RoundKeys, place: &PublishedAddress) -> Result<(), ClientError> {
    talk.store.set(&keys.master_addr(), place.addr.as_bytes())?;
    talk.store.set(&keys.master_port(), place.port.to_string().as_bytes())
}

fn read(
    plan: &Exchange<'_>,
    talk: &mut Talk<'_, '_>,
    keys: &RoundKeys,
) -> Result<PublishedAddress, ExchangeError> {
    let (addr, port) = (keys.master_addr(), keys.master_port());
    let what = "address of the workers' store";
    if !talk.wait(&[&addr, &port], plan.read_timeout)? {
        return Err(silent(plan, what).into());
    }
    let values = talk.store.multi_get(&[&addr, &port])?;
    let place =
        values.first().zip(values.get(1)).and_then(|(addr, port)| PublishedAddress::parse(addr, port));
    let unreadable = RendezvousError::Unreadable {
        what: "the address of the workers' store",
        node: name(plan.members, 0),
    };
    Ok(place.ok_or(unreadable)?)
}

/// What was published in the rounds before this one.
fn history(
    plan: &Exchange<'_>,
    talk: &mut Talk<'_, '_>,
) -> Result<BTreeMap<u64, PublishedAddress>, ExchangeError> {
    let listed = talk.store.list_keys()?;
    let mut rounds: Vec<u64> = listed.iter().filter_map(|key| plan.keys.round_of_master_addr(key)).collect();
    rounds.retain(|round| *round < plan.round);
    rounds.sort_unstable();
    let past = &rounds[rounds.len().saturating_sub(MAX_PAST)..];
    let keys: Vec<String> = past
        .iter()
        .map(|round| plan.keys.round(*round))
        .flat_map(|keys| [keys.master_addr(), keys.master_port()])
        .collect();
    if keys.is_empty() {
        return Ok(BTreeMap::new());
    }
    let values = talk.store.multi_get(&keys.iter().map(String::as_str).collect::<Vec<_>>())?;
    let places = values.chunks_exact(2).map(|pair| PublishedAddress::parse(&pair[0], &pair[1]));
    Ok(past.iter().zip(places).filter_map(|(round, place)| Some((*round, place?))).collect())
}

/// Deletes every key of another member's store: no worker uses it, since every member has joined the new round. Tried
/// again while the member is not known to be dead, which whoever is called between the tries finds out.
fn empty(
    plan: &Exchange<'_>,
    talk: &mut Talk<'_, '_>,
    place: &PublishedAddress,
) -> Result<(), ExchangeError> {
    let deadline = Instant::now() + plan.read_timeout;
    let mut limit = SLICE;
    loop {
        match try_to_empty(plan, talk, place, limit)? {
            Ok(()) => return Ok(()),
            Err(source) if Instant::now() >= deadline => {
                return Err(RendezvousError::NotEmptied { place: place.to_string(), source }.into());
            }
            Err(error) => tracing::debug!(%error, %place, "the workers' store cannot be emptied yet"),
        }
        talk.pause()?;
        std::thread::sleep(RETRY);
        // The member may be far away.
        limit = (limit * 2).min(LONGEST_TRY);
    }
}

fn try_to_empty(
    plan: &Exchange<'_>,
    talk: &mut Talk<'_, '_>,
    place: &PublishedAddress,
    limit: Duration,
) -> Result<Result<(), ClientError>, ExchangeError> {
    let listed = (plan.resolve)(&place.addr, place.port).map_err(ClientError::from).and_then(|addresses| {
        let settings = ClientSettings { nonce: plan.nonce, answer: ANSWER, silence: plan.read_timeout };
        let mut store = Client::connect_within(&addresses, settings, limit)?;
        Ok((store.list_keys()?, store))
    });
    let (keys, mut store) = match listed {
        Ok(listed) => listed,
        Err(error) => return Ok(Err(error)),
    };
    let mut looked = Instant::now();
    for key in keys {
        // No program of torch's or ours has another kind of key.
        let Ok(key) = std::str::from_utf8(&key) else { continue };
        if let Err(error) = store.delete(key) {
            return Ok(Err(error));
        }
        if looked.elapsed() >= SLICE {
            talk.pause()?;
            looked = Instant::now();
        }
    }
    Ok(Ok(()))
}

fn silent(plan: &Exchange<'_>, what: &'static str) -> RendezvousError {
    let nodes = vec![name(plan.members, 0)];
    RendezvousError::NoAnswer { what, nodes, waited: plan.read_timeout }
}

fn moved(plan: &Exchange<'_>, refusal: &StaleMasterAddress, now: &str) -> RendezvousError {
    let index = plan.members.iter().position(|(node, _)| *node == refusal.peer);
    let of_peer = || NodeName::of_node(&refusal.peer, None, None);
    RendezvousError::MasterMoved {
        peer: Box::new(index.map_or_else(of_peer, |index| name(plan.members, index))),
        believed: refusal.cached_address.to_string(),
        now: now.to_owned(),
    }
}
