//! Jobs on hosts that stand for pods: the variables of their manifest, and names that a name server learns late.

use harness::{Fleet, Job, Launch, Name, is_rankrun};

use super::Pod;
use crate::nodes::{assert_all_succeed, placements_of};

/// Host 1 is pod 0.
const PODS: [usize; 2] = [1, 2];

/// The variables of a pod.
type Environment = Vec<(String, String)>;

/// What Kubernetes and the manifest set for the pod with this index.
fn of_manifest(pod: &Pod, index: usize) -> Environment {
    let mut environment = pod.environment();
    environment.push(("JOB_COMPLETION_INDEX".to_owned(), index.to_string()));
    environment
}

/// What Kubeflow Trainer sets; the rest stands in the manifest of the runtime.
fn of_trainer(pod: &Pod, index: usize) -> Environment {
    let set = [
        ("PET_NNODES", "2"),
        ("PET_NPROC_PER_NODE", "1"),
        ("PET_NODE_RANK", &index.to_string()),
        ("PET_MASTER_ADDR", "train-node-0-0.train"),
        ("PET_MASTER_PORT", "29500"),
    ];
    let set = set.map(|(name, value)| (name.to_owned(), value.to_owned()));
    of_manifest(pod, index).into_iter().chain(set).collect()
}

fn value_of(environment: &Environment, name: &str) -> String {
    environment.iter().find(|(known, _)| known == name).expect("it is set").1.clone()
}

/// The launcher of a pod, as an image starts it: with nothing but the program.
fn start(fleet: &Fleet, name: Name, host: usize, environment: &Environment) -> Job {
    let launch = Launch::new(name).worker(["place", "sum", "reduce=2"]);
    let launch = environment.iter().fold(launch, |launch, (name, value)| launch.env(name, value));
    fleet.on(host, launch).start()
}

/// One job of two nodes, pod 0 with rank 0.
#[track_caller]
fn assert_one_job(jobs: impl IntoIterator<Item = Job>) {
    let outcomes = assert_all_succeed(jobs);
    for (rank, outcome) in outcomes.iter().enumerate() {
        outcome.expect_stdout("world=2 total=3").expect_stdout("reduced rank=");
        let placement = format!("{rank} of 2, node {rank} of 2");
        assert_eq!(placements_of(std::slice::from_ref(outcome)), [placement], "{outcome}");
    }
}

/// No pod knows the name of pod 0 at first, pod 0 included.
#[track_caller]
fn assert_late_name_is_found(name: Name, environment: impl Fn(usize) -> Environment) {
    let Some(fleet) = Fleet::start(2) else { return };
    PODS.into_iter().for_each(|host| fleet.remove_host_names(host));
    let master = value_of(&environment(0), "PET_MASTER_ADDR");
    let jobs = PODS.map(|host| start(&fleet, name, host, &environment(host - 1)));
    jobs[0].wait_for_line("1 of 2 is here");
    let line = jobs[1].wait_for_line("waiting for the rendezvous store at ");
    assert!(line.contains(&format!("no address is known for the host `{master}`")), "{line}");
    let names = format!("{} {master}\n", Fleet::address(1));
    PODS.into_iter().for_each(|host| fleet.write_hosts_file(host, &names));
    assert_one_job(jobs);
    fleet.is_empty();
}

#[test]
fn indexed_job_whose_first_pod_has_no_address_yet_starts() {
    if is_rankrun() {
        let pod = Pod::of("Job");
        assert_late_name_is_found(Name::Rankrun, |index| of_manifest(&pod, index));
    }
}

#[test]
fn jobset_whose_first_pod_has_no_address_yet_starts() {
    if is_rankrun() {
        let pod = Pod::of("JobSet");
        assert_late_name_is_found(Name::Rankrun, |index| of_manifest(&pod, index));
    }
}

#[test]
fn train_job_whose_first_pod_has_no_address_yet_starts_under_both_names() {
    if is_rankrun() {
        let pod = Pod::of("TrainingRuntime");
        for name in Name::both() {
            assert_late_name_is_found(*name, |index| of_trainer(&pod, index));
        }
    }
}

/// The loopback, as Debian's `127.0.1.1`, and the address of a pod that is gone.
#[test]
fn name_with_a_wrong_address_is_looked_up_again() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    let pod = Pod::of("Job");
    let master = pod.variable("PET_MASTER_ADDR");
    let right = format!("{} {master}\n", Fleet::address(1));
    fleet.write_hosts_file(1, &right);
    let wrong = [
        ("127.0.1.1".to_owned(), format!("`{master}` means this machine itself here (`127.0.1.1`)")),
        (Fleet::address(80), String::new()),
    ];
    for (address, reason) in wrong {
        fleet.write_hosts_file(2, &format!("{address} {master}\n"));
        let jobs = PODS.map(|host| start(&fleet, Name::Rankrun, host, &of_manifest(&pod, host - 1)));
        let line = jobs[1].wait_for_line("waiting for the rendezvous store at ");
        assert!(line.contains(&reason), "{line}");
        fleet.write_hosts_file(2, &right);
        assert_one_job(jobs);
    }
    fleet.is_empty();
}

/// Of the two addresses one belongs to no machine.
#[test]
fn each_address_of_a_name_with_two_families_is_tried() {
    if !is_rankrun() {
        return;
    }
    let Some(fleet) = Fleet::start(2) else { return };
    let pod = Pod::of("Job");
    let master = pod.variable("PET_MASTER_ADDR");
    for (v4, v6) in [(1, 80), (80, 1)] {
        let names = format!("{} {master}\n{} {master}\n", Fleet::address(v4), Fleet::address_v6(v6));
        PODS.into_iter().for_each(|host| fleet.write_hosts_file(host, &names));
        assert_one_job(PODS.map(|host| start(&fleet, Name::Rankrun, host, &of_manifest(&pod, host - 1))));
    }
    fleet.is_empty();
}
