//! Claims to node ranks: which agent holds a rank, for how long, and which agent gets it next.

use super::*;

/// A store in which this agent has published claim and role_info.
fn store_with_the_claim_of(agent: &Agent) -> StoreServer {
    let store = serve();
    let result = agent.join(&store, &mut |_| Err(Aborted));
    assert!(matches!(result, Err(ExchangeError::Aborted)), "{result:?}");
    let names = [keys().0.claim(NodeRank(1)), keys().1.role_info(NodeRank(1))];
    assert!(connect(&store).check(&names.each_ref().map(String::as_str)).unwrap());
    store
}

fn take_back_of(agent: &Agent, store: &StoreServer, is_back: bool) {
    let departed = [agent.descriptor.nonce].into();
    withdraw_claims(&mut connect(store), (&agent.run_id, agent.nodes), &departed, |_| is_back).unwrap();
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
    let result = next.join(&store, &mut |_| Err(Aborted));
    assert!(matches!(result, Err(ExchangeError::Aborted)), "{result:?}");
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
    let mut is_known = false;
    let result = next.join(&store, &mut |_| {
        if is_known {
            let is_ours = hosts(&roll_of(&Agent::new(0, 2), &store)) == ["th0", "th7"];
            return if is_ours { Err(Aborted) } else { Ok(()) };
        }
        take_back_of(&dead, &store, false);
        is_known = true;
        Ok(())
    });
    assert!(matches!(result, Err(ExchangeError::Aborted)), "{result:?}");
    assert!(is_known);
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
    assert_eq!(last.join(&store, &mut |_| Err(Aborted)).unwrap(), FirstRound::Running);
    assert_eq!(hosts(&roll_of(&Agent::new(0, 2), &store)), ["th0", "th8"]);
}

#[test]
fn agent_dead_after_role_info_is_replaced_in_next_round() {
    let store = serve();
    let dead = Agent { timeout: Duration::from_millis(20), ..Agent::new(1, 2) };
    failure(dead.join(&store, &mut |_| Ok(())));
    let next = Agent { lease: Duration::from_millis(20), ..Agent::new(1, 2).other_process("th7") };
    // Rank 0 finds the dead agent's role_info and all claims, and starts with them.
    let joined = Agent::new(0, 2).join(&store, &mut |_| Ok(()));
    let Ok(FirstRound::Alone { state, .. }) = joined else { panic!("{joined:?}") };
    assert!(state.participants.contains(&dead.node));
    assert_eq!(next.join(&store, &mut |_| Ok(())).unwrap(), FirstRound::Running);
}

#[test]
fn unreadable_claim_is_not_taken_over() {
    let store = serve();
    let mut client = connect(&store);
    let key = keys().0.claim(NodeRank(1));
    for text in [&b"\xff"[..], b"{}", b"[[[["] {
        client.set(&key, text).unwrap();
        assert!(client.check(&[&key]).unwrap());
        let error = failure(Agent::new(1, 2).join(&store, &mut |_| Ok(())));
        let words = "this agent is rankrun 0.1.0, and what that one says of itself cannot be read";
        assert_eq!(error, format!("this agent and the one on another node are not of one job: {words}"));
    }
}

/// Three agents come before the host of the store has claimed its rank; one has another number of nodes.
#[test]
fn misfit_that_claims_before_the_host_refuses_itself() {
    let store = serve();
    let (waiting, is_waiting) = mpsc::channel();
    let mut misfit = Agent { nodes: NodeCount::new(3).unwrap(), ..Agent::new(1, 3) };
    misfit.descriptor.host = "th9".to_owned();
    misfit.descriptor.nonce = 9;
    misfit.node.addr = "th9".to_owned();
    let (host, right) = (Agent::new(0, 2), Agent::new(1, 2));
    thread::scope(|scope| {
        let store = &store;
        let refused = scope.spawn(move || {
            misfit.join(store, &mut |_| {
                let _ = waiting.send(());
                Ok(())
            })
        });
        is_waiting.recv().unwrap();
        let hosted = scope.spawn(|| host.join(store, &mut |_| Ok(())));
        let error = failure(refused.join().unwrap());
        assert_eq!(
            error,
            "this agent and the one on node 0 (th0) are not of one job: this agent was started with `--nnodes 3`, \
             that one with `--nnodes 2`"
        );
        // The host of the store does this after the connections of the misfit have closed.
        let job = (&host.run_id, host.nodes);
        withdraw_claims(&mut connect(store), job, &[9].into(), |_| false).unwrap();
        let joined = [right.join(store, &mut |_| Ok(())), hosted.join().unwrap()];
        assert!(joined.iter().all(|one| matches!(one, Ok(FirstRound::Alone { .. }))), "{joined:?}");
    });
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
    let (waiting, is_waiting) = mpsc::channel();
    thread::scope(|scope| {
        let store = &store;
        let hosted = scope.spawn(move || {
            Agent::new(0, 2).join(store, &mut |_| {
                let _ = waiting.send(());
                Ok(())
            })
        });
        (0..3).for_each(|_| is_waiting.recv().expect("the host waits"));
        client.delete(&info_key).unwrap();
        client.delete(&claim_key).unwrap();
        let joined = [Agent::new(1, 2).join(store, &mut |_| Ok(())), hosted.join().unwrap()];
        assert!(joined.iter().all(|one| matches!(one, Ok(FirstRound::Alone { .. }))), "{joined:?}");
    });
}
