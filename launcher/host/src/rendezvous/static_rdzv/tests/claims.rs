//! Claims to node ranks: which agent holds a rank, for how long, and which agent gets it next.

use super::*;

/// A store in which this agent has published claim and role_info.
fn store_with_the_claim_of(agent: &Agent) -> StoreServer {
    let store = serve();
    agent.join_until(&store, &own_keys().each_ref().map(String::as_str));
    store
}

/// Claim and role_info of node rank 1.
fn own_keys() -> [String; 2] {
    [keys().0.claim(NodeRank(1)), keys().1.role_info(NodeRank(1))]
}

fn withdraw(store: &StoreServer, agent: &Agent, departed: u32, is_back: bool) {
    let mut client = connect(store);
    let connected = is_back.then_some(departed).into_iter().collect();
    client.runtime.block_on(async {
        let (store, job) = (&mut client.client, (&agent.run_id, agent.nodes));
        let withdrawn = withdraw_claims(store, job, &[departed].into()).await.unwrap();
        release_ranks(store, &agent.run_id, withdrawn, &connected).await.unwrap();
    });
}

fn take_back_of(agent: &Agent, store: &StoreServer, is_back: bool) {
    withdraw(store, agent, agent.descriptor.nonce, is_back);
}

/// An agent that waits for another agent's place counts as joined; the other agent does not.
#[test]
fn previous_rank_holder_is_named_and_not_counted() {
    let store = store_with_the_claim_of(&Agent::new(1, 2));
    let roll = roll_of(&Agent::new(1, 2).other_process("th7"), &store);
    assert_eq!((hosts(&roll).as_slice(), &*roll.missing), (&["th7"][..], &[NodeRank(0)][..]));
    assert_eq!(roll.holder.and_then(|holder| holder.host).as_deref(), Some("th1"));
}

#[test]
fn rank_of_disconnected_agent_is_free() {
    let dead = Agent::new(1, 2);
    let store = store_with_the_claim_of(&dead);
    take_back_of(&Agent::new(2, 3), &store, false);
    assert_eq!(roll_of(&Agent::new(0, 2), &store).missing, [], "another one has gone");
    take_back_of(&dead, &store, false);
    assert_eq!(roll_of(&Agent::new(0, 2), &store).missing, [NodeRank(1)]);
    // The dead agent's role_info is gone too: rank 0 waits for the replacement.
    assert!(!connect(&store).check(&[&keys().1.role_info(NodeRank(1))]).unwrap());
    let next = dead.other_process("th7");
    next.join_until(&store, &own_keys().each_ref().map(String::as_str));
    assert_eq!(hosts(&roll_of(&Agent::new(0, 2), &store)), ["th0", "th7"]);
}

#[test]
fn reconnected_agent_keeps_its_rank() {
    let agent = Agent::new(1, 2);
    let store = store_with_the_claim_of(&agent);
    take_back_of(&agent, &store, true);
    assert_eq!(hosts(&roll_of(&Agent::new(0, 2), &store)), ["th0", "th1"]);
    assert!(connect(&store).check(&[&keys().1.role_info(NodeRank(1))]).unwrap());
}

/// The lease is longer than the test: only the reported death ends the wait.
#[test]
fn waiting_agent_gets_rank_after_reported_death() {
    let dead = Agent::new(1, 2);
    let store = store_with_the_claim_of(&dead);
    let next = dead.other_process("th7");
    // The dead agent's role_info is deleted with its claim.
    let end = thread::scope(|scope| {
        let joins = scope.spawn(|| Agent { timeout: Duration::from_millis(20), ..next }.join(&store));
        while runtime().block_on(store.connections()).unwrap() == 0 {}
        take_back_of(&dead, &store, false);
        joins.join().unwrap()
    });
    assert!(failure(end).contains("only 1 of 2 nodes came"));
    assert_eq!(hosts(&roll_of(&Agent::new(0, 2), &store)), ["th0", "th7"]);
}

#[test]
fn rank_of_dead_agent_is_taken_over() {
    let store = serve();
    let run = |agents: &[Agent]| -> Vec<FirstRound> {
        join_all(agents, &store).into_iter().map(Result::unwrap).collect()
    };
    run(&[Agent::new(0, 2), Agent::new(1, 2)]);
    // This agent sends no heartbeat.
    let lease = Duration::from_millis(20);
    let next = Agent { lease, ..Agent::new(1, 2).other_process("th7") };
    assert_eq!(run(std::slice::from_ref(&next)), [FirstRound::Running]);
    // This agent announced that it leaves: its lease is not waited for.
    let mut client = connect(&store);
    client.set(&keys().0.left(&next.node), b"SIGTERM").unwrap();
    let last = Agent::new(1, 2).other_process("th8");
    assert_eq!(last.join(&store).unwrap(), FirstRound::Running);
    assert_eq!(hosts(&roll_of(&Agent::new(0, 2), &store)), ["th0", "th8"]);
}

#[test]
fn agent_dead_after_role_info_is_replaced_in_next_round() {
    let store = serve();
    let dead = Agent { timeout: Duration::from_millis(20), ..Agent::new(1, 2) };
    failure(dead.join(&store));
    let next = Agent { lease: Duration::from_millis(20), ..Agent::new(1, 2).other_process("th7") };
    // Rank 0 finds the dead agent's role_info and all claims, and starts with them.
    let joined = Agent::new(0, 2).join(&store);
    let Ok(FirstRound::Alone { state, .. }) = joined else { panic!("{joined:?}") };
    assert!(state.participants.contains(&dead.node));
    assert_eq!(next.join(&store).unwrap(), FirstRound::Running);
}

#[test]
fn unreadable_claim_is_not_taken_over() {
    let store = serve();
    let mut client = connect(&store);
    let key = keys().0.claim(NodeRank(1));
    for text in [&b"\xff"[..], b"{}", b"[[[["] {
        client.set(&key, text).unwrap();
        assert!(client.check(&[&key]).unwrap());
        let error = failure(Agent::new(1, 2).join(&store));
        let words = "this agent is rankrun 0.1.0, and the descriptor of the other agent cannot be read";
        assert_eq!(error, format!("this agent and the one on another node are not of one job: {words}"));
    }
}

/// Three agents come before the host of the store has claimed its rank; one has another number of nodes.
#[test]
fn misfit_that_claims_before_the_host_refuses_itself() {
    let store = serve();
    let mut misfit = Agent { nodes: NodeCount::new(3).unwrap(), ..Agent::new(1, 3) };
    misfit.descriptor.host = "th9".to_owned();
    misfit.descriptor.nonce = 9;
    misfit.node.addr = "th9".to_owned();
    let (host, right) = (Agent::new(0, 2), Agent::new(1, 2));
    thread::scope(|scope| {
        let store = &store;
        let refused = scope.spawn(move || misfit.join(store));
        let names = own_keys();
        let deadline = Instant::now() + LIMIT;
        assert!(connect(store).wait(&names.each_ref().map(String::as_str), deadline).unwrap());
        let hosted = scope.spawn(|| host.join(store));
        let error = failure(refused.join().unwrap());
        assert_eq!(
            error,
            "this agent and the one on node 0 (th0) are not of one job: this agent was started with `--nnodes 3`, \
             the other agent with `--nnodes 2`"
        );
        // The host of the store does this after the connections of the misfit have closed.
        withdraw(store, &host, 9, false);
        let joined = [right.join(store), hosted.join().unwrap()];
        assert!(joined.iter().all(|one| matches!(one, Ok(FirstRound::Alone { .. }))), "{joined:?}");
    });
}

/// The number of workers of a dead agent must not be published for the agent that has taken its rank.
#[test]
fn role_that_changed_since_it_was_read_is_read_again() {
    let store = store_with_the_claim_of(&Agent::new(1, 2));
    let (_, round) = keys();
    let mut client = connect(&store);
    let info =
        |workers| RoleInfo { role: "default".to_owned(), workers: LocalWorldSize::new(workers).unwrap() };
    client.set(&round.role_info(NodeRank(0)), &info(1).to_json(NodeRank(0))).unwrap();
    let setup = Agent::new(0, 2).setup();
    let job = StaticJob::of(&setup);
    for (workers, expected) in [(7, JoinedNodes::HaveChanged), (2, JoinedNodes::BelongToJob)] {
        let (infos, mut misfit_since) = ([info(1), info(workers)], None);
        let begun = job.begin(&mut client.client, &infos, &mut misfit_since);
        assert_eq!(client.runtime.block_on(begun).unwrap(), expected, "{workers}");
    }
}

/// A node that fails itself may have removed its claim, but not its role_info yet.
#[test]
fn host_waits_for_a_rank_whose_claim_is_being_taken_back() {
    let store = serve();
    let (keys, round) = keys();
    let (claim_key, info_key) = (keys.claim(NodeRank(1)), round.role_info(NodeRank(1)));
    let mut client = connect(&store);
    let info = RoleInfo { role: "default".to_owned(), workers: LocalWorldSize::new(2).unwrap() };
    client.set(&claim_key, super::claim::WITHDRAWN_CLAIM).unwrap();
    client.set(&info_key, &info.to_json(NodeRank(1))).unwrap();
    thread::scope(|scope| {
        let store = &store;
        let hosted = scope.spawn(move || Agent::new(0, 2).join(store));
        let own = round.role_info(NodeRank(0));
        assert!(client.wait(&[&own], Instant::now() + LIMIT).unwrap(), "the host has joined");
        client.delete(&info_key).unwrap();
        client.delete(&claim_key).unwrap();
        let joined = [Agent::new(1, 2).join(store), hosted.join().unwrap()];
        assert!(joined.iter().all(|one| matches!(one, Ok(FirstRound::Alone { .. }))), "{joined:?}");
    });
}
