//! Members that run torchrun: what they publish, cache and cannot follow.

use super::*;

/// What torchrun 2.15 does after it has joined, as far as others see it. `cached` outlives the round.
fn torchrun(
    store: &StoreServer,
    round: u64,
    (rank, nodes): (u32, u32),
    cached: &mut Option<PublishedAddress>,
    own: Option<&NodeStore>,
) -> [u32; 4] {
    let keys = keys().round(round);
    let mut client = connect(store);
    let mut get = |key: &str| {
        assert!(client.wait(&[key], Instant::now() + LIMIT).unwrap(), "{key}");
        client.get(key).unwrap()
    };
    if cached.is_none() && own.is_none() {
        let (addr, port) = (get(&keys.master_addr()), get(&keys.master_port()));
        *cached = Some(PublishedAddress::parse(&addr, &port).unwrap());
    }
    let mut client = connect(store);
    if let (None, Some(own)) = (&cached, own) {
        client.set(&keys.master_addr(), own.place().addr.as_bytes()).unwrap();
        client.set(&keys.master_port(), own.place().port.to_string().as_bytes()).unwrap();
        *cached = Some(own.place());
    }
    let text = format!(r#"{{"role": "default", "rank": {rank}, "local_world_size": 2}}"#);
    client.set(&keys.role_info(NodeRank(rank)), text.as_bytes()).unwrap();
    if rank == 0 {
        let names: Vec<String> = (0..nodes).map(|rank| keys.role_info(NodeRank(rank))).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert!(client.wait(&names, Instant::now() + LIMIT).unwrap());
        if let Some(own) = own {
            assert_eq!(own.keys(), 0, "a worker would find keys of the round before");
        }
        let texts = client.multi_get(&names).unwrap();
        let infos: Vec<RoleInfo> = (0..nodes)
            .zip(&texts)
            .map(|(rank, text)| RoleInfo::from_json(text, NodeRank(rank)).unwrap())
            .collect();
        for (rank, one) in (0..nodes).zip(assign(&infos).unwrap()) {
            client.set(&keys.assigned_ranks(NodeRank(rank)), &one.to_json()).unwrap();
        }
    }
    let own_ranks = keys.assigned_ranks(NodeRank(rank));
    assert!(client.wait(&[&own_ranks], Instant::now() + LIMIT).unwrap());
    serde_json::from_slice(&client.get(&own_ranks).unwrap()).unwrap()
}

#[test]
fn torchrun_reads_address_of_rankrun_rank_zero() {
    let store = serve();
    let (mut a, mut cached) = (Agent::new("a"), None);
    for round in 0..2 {
        a.store.use_by_worker();
        let ranks = thread::scope(|scope| {
            let theirs = scope.spawn(|| torchrun(&store, round, (1, 2), &mut cached, None));
            let ours = join_all(&mut [&mut a], &store, round, "a T").remove(0).unwrap();
            assert_eq!(ours.members[1].workers, LocalWorldSize::new(2));
            theirs.join().unwrap()
        });
        assert_eq!(ranks, [1, 3, 1, 3]);
        assert_eq!(cached, Some(a.store.place()));
        assert_eq!(a.store.keys(), 0);
    }
}

#[test]
fn torchrun_rank_zero_publishes_address_and_empties_store() {
    let store = serve();
    let (theirs, mut cached) = (NodeStore::new("T"), None);
    let (mut a, mut b, mut newcomer) = (Agent::new("a"), Agent::new("b"), None);
    a.store.use_by_worker();
    b.store.use_by_worker();
    for (round, names) in [(0, "T a b"), (1, "T a b U"), (2, "T a b U")] {
        theirs.use_by_worker();
        let nodes = members(names).len() as u32;
        thread::scope(|scope| {
            scope.spawn(|| torchrun(&store, round, (0, nodes), &mut cached, Some(&theirs)));
            if nodes == 4 {
                scope.spawn(|| torchrun(&store, round, (3, 4), &mut newcomer, None));
            }
            for joined in join_all(&mut [&mut a, &mut b], &store, round, names) {
                assert_eq!(joined.unwrap().master, theirs.place().master(true));
            }
        });
        assert_eq!(theirs.keys(), 0);
    }
    assert_eq!(newcomer, Some(theirs.place()));
    assert_eq!([&a, &b].map(|agent| agent.store.keys()), [2; 2], "no other store is reset");
}

#[test]
fn new_rankrun_agent_finds_store_of_torchrun_rank_zero() {
    let store = serve();
    let (theirs, mut cached) = (NodeStore::new("T"), None);
    torchrun(&store, 0, (0, 1), &mut cached, Some(&theirs));
    torchrun(&store, 1, (0, 1), &mut cached, Some(&theirs));
    let mut a = Agent::new("a");
    theirs.use_by_worker();
    thread::scope(|scope| {
        scope.spawn(|| torchrun(&store, 2, (0, 2), &mut cached, Some(&theirs)));
        let joined = join_all(&mut [&mut a], &store, 2, "T a").remove(0).unwrap();
        assert_eq!((joined.master, joined.base_rank.0), (theirs.place().master(true), 2));
    });
}

#[test]
fn new_rankrun_rank_zero_keeps_address_cached_by_torchrun() {
    let store = serve();
    let (theirs, mut cached) = (NodeStore::new("T"), None);
    let mut a = Agent::new("a");
    thread::scope(|scope| {
        scope.spawn(|| torchrun(&store, 0, (0, 2), &mut cached, Some(&theirs)));
        join_all(&mut [&mut a], &store, 0, "T a").remove(0).unwrap();
    });
    theirs.use_by_worker();
    let mut b = Agent::new("b");
    // As an agent that has seen the round before joins it.
    let participants = [(node("T"), 0), (node("a"), 1)].into_iter().collect();
    b.cache.lock().record_state(&rankrun_core::rendezvous::state::RendezvousState {
        complete: true,
        participants,
        ..Default::default()
    });
    thread::scope(|scope| {
        scope.spawn(|| torchrun(&store, 1, (2, 3), &mut cached, Some(&theirs)));
        for joined in join_all(&mut [&mut b, &mut a], &store, 1, "b a T") {
            assert_eq!(joined.unwrap().master, theirs.place().master(true));
        }
    });
    assert_eq!(theirs.keys(), 0);
}

#[test]
fn stale_torchrun_address_is_refused_by_all_members() {
    let store = serve();
    let (mut a, mut b, mut cached) = (Agent::new("a"), Agent::new("b"), None);
    let mut c = Agent::new("c");
    thread::scope(|scope| {
        scope.spawn(|| torchrun(&store, 0, (3, 4), &mut cached, None));
        for joined in join_all(&mut [&mut a, &mut b, &mut c], &store, 0, "a b c T") {
            joined.unwrap();
        }
    });
    // `a` is gone. Rank 0 says so before anything is published; the other hears of it from there, or by its own wait.
    c.read_timeout = Duration::from_millis(20);
    let mut results = join_all(&mut [&mut b, &mut c], &store, 1, "b c T");
    let place = a.store.place();
    assert_eq!(
        failure(results.remove(0)),
        format!(
            "the workers' store has moved from `{place}` to `node 0 (b)`, and torchrun on node 2 (T) cannot follow: it reads the address only once"
        )
    );
    assert!(failure(results.remove(0)).contains("torchrun on node 2 (T) cannot follow"));
    assert!(!connect(&store).check(&[&keys().round(1).role_info(NodeRank(0))]).unwrap());
}

#[test]
fn worker_hosted_store_has_new_port_in_every_round() {
    let store = serve();
    let mut ports = BTreeSet::new();
    let mut given = TrainingStore::unopened(StoreHost::Worker, &NetworkSpec::default());
    given.set_address("th1", None);
    let (given, cache) = (shared(given), SharedAddressCache::default());
    for round in 0..2 {
        // It reads the address in every round.
        let mut cached = None;
        let exchange = RankExchange {
            keys: keys(),
            round,
            role: "default".to_owned(),
            workers: LocalWorldSize::ONE,
            node_rank: NodeRank(0),
            members: members("a T"),
            read_timeout: LIMIT,
            nonce: 7,
            resolve: resolve_to(|_, _| unreachable!()),
            training_store: Arc::clone(&given),
            address_cache: cache.clone(),
        };
        let joined = thread::scope(|scope| {
            scope.spawn(|| torchrun(&store, round, (1, 2), &mut cached, None));
            run(&store, &exchange).unwrap()
        });
        assert!(!joined.master.uses_agent_store);
        assert_eq!(cached, Some(PublishedAddress::from(&joined.master)));
        ports.insert(joined.master.port);
    }
    assert_eq!(ports.len(), 2);
}
