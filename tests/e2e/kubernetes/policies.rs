//! The numbers and names that must agree: within a manifest, and with the launcher. `tests/kubernetes` asks the schemas.

use std::fs;

use harness::checkout;
use rankrun_core::exit_code::{DO_NOT_REQUEUE, REQUEUE, TIME_LIMIT, USAGE};
use serde_json::{Value, json};

use super::Pod;
use super::manifest::{at, resource, text};

/// What the launcher may need behind the grace of the workers: for processes that survive SIGKILL, files, and other nodes.
const SECONDS_AFTER_GRACE: u64 = 15;

#[test]
fn number_of_nodes_is_the_same_everywhere() {
    for pod in [Pod::of("Job"), Pod::of("JobSet")] {
        let nodes: u64 = pod.variable("PET_NNODES").parse().expect("a number");
        assert_eq!(pod.job["completionMode"], "Indexed", "{}", pod.file);
        assert_eq!([&pod.job["completions"], &pod.job["parallelism"]], [&json!(nodes); 2], "{}", pod.file);
    }
    // Trainer sets these itself, and refuses a TrainJob that does.
    let runtime = Pod::of("TrainingRuntime");
    let names: Vec<_> = runtime.environment().into_iter().map(|(name, _)| name).collect();
    assert!(names.iter().all(|name| !name.starts_with("PET_")), "{names:?}");
    let train_job = resource("trainjob.yaml", "TrainJob");
    assert_eq!(at(&train_job, "/spec/runtimeRef/name"), at(&runtime.resource, "/metadata/name"));
    assert_eq!(train_job.pointer("/spec/trainer/env"), None);
}

#[test]
fn master_address_is_the_name_of_the_first_pod() {
    let job = Pod::of("Job");
    let service = resource(job.file, "Service");
    let (name, subdomain) = (text(&job.resource, "/metadata/name"), text(&job.pod, "/subdomain"));
    assert_eq!(job.variable("PET_MASTER_ADDR"), format!("{name}-0.{subdomain}"));
    assert_eq!(text(&service, "/metadata/name"), subdomain);
    assert_eq!(text(&service, "/spec/clusterIP"), "None");
    assert_eq!(text(&service, "/spec/selector/batch.kubernetes.io~1job-name"), name);
    let set = Pod::of("JobSet");
    let (name, part) =
        (text(&set.resource, "/metadata/name"), text(&set.resource, "/spec/replicatedJobs/0/name"));
    let subdomain = text(&set.resource, "/spec/network/subdomain");
    assert_eq!(set.variable("PET_MASTER_ADDR"), format!("{name}-{part}-0-0.{subdomain}"));
    // With more than one Job an index would stand for several pods.
    assert_eq!(at(&set.resource, "/spec/replicatedJobs/0/replicas"), 1);
    assert_eq!(at(&set.resource, "/spec/replicatedJobs").as_array().map(Vec::len), Some(1));
    let runtime = Pod::of("TrainingRuntime");
    let networks = [
        at(&service, "/spec"),
        at(&set.resource, "/spec/network"),
        at(&runtime.resource, "/spec/template/spec/network"),
    ];
    assert_eq!(networks.map(|network| &network["publishNotReadyAddresses"]), [&json!(true); 3]);
    for pod in [job, set] {
        let port: u64 = pod.variable("PET_MASTER_PORT").parse().expect("a port");
        assert_eq!(at(pod.container(), "/ports/0/containerPort"), port, "{}", pod.file);
    }
}

/// `podFailurePolicy` needs pods that are not restarted in place.
#[test]
fn pod_failure_policy_follows_exit_statuses() {
    for pod in Pod::all() {
        let file = pod.file;
        assert_eq!(pod.pod["restartPolicy"], "Never", "{file}");
        let rules = at(&pod.job, "/podFailurePolicy/rules").as_array().expect("a list").clone();
        let [disruption, requeue, fail] = <[Value; 3]>::try_from(rules).expect("three rules");
        assert_eq!(disruption["action"], "Ignore", "{file}");
        assert_eq!(text(&disruption, "/onPodConditions/0/type"), "DisruptionTarget");
        for (rule, action, codes) in
            [(requeue, "Ignore", vec![REQUEUE]), (fail, "FailJob", vec![USAGE, DO_NOT_REQUEUE, TIME_LIMIT])]
        {
            assert_eq!(rule["action"], action, "{file}");
            let expected = json!({
                "containerName": pod.container()["name"], "operator": "In", "values": codes,
            });
            assert_eq!(rule["onExitCodes"], expected, "{file}");
        }
    }
}

/// Where the host of the store is lost the other nodes end with 1, and all have to start again.
#[test]
fn failed_job_is_started_again() {
    for (kind, limit) in [
        ("Job", "/spec/backoffLimit"),
        ("JobSet", "/spec/failurePolicy/maxRestarts"),
        ("TrainingRuntime", "/spec/template/spec/failurePolicy/maxRestarts"),
    ] {
        assert!(at(&Pod::of(kind).resource, limit).as_u64() > Some(0), "{kind}");
    }
}

#[test]
fn grace_and_report_fit_into_termination_period() {
    for pod in Pod::all() {
        let grace = pod.variable("RANKRUN_GRACE");
        let grace: u64 = grace.strip_suffix('s').and_then(|seconds| seconds.parse().ok()).expect("seconds");
        let period = at(&pod.pod, "/terminationGracePeriodSeconds").as_u64().expect("seconds");
        assert!(grace + SECONDS_AFTER_GRACE <= period, "{}: {grace} s of {period} s", pod.file);
    }
}

/// As a liveness probe it would end pods that wait for others.
#[test]
fn readiness_probe_asks_the_launcher() {
    for pod in Pod::all() {
        let probe = at(pod.container(), "/readinessProbe");
        assert_eq!(probe["exec"]["command"], json!(["rankrun", "status", "--check"]), "{}", pod.file);
        assert!(probe["timeoutSeconds"].as_u64() > Some(5), "an answer may take 5 s: {}", pod.file);
        assert_eq!(pod.container().get("livenessProbe"), None, "{}", pod.file);
    }
}

/// In the shell form a shell would be process 1, and get the signals.
#[test]
fn image_starts_the_launcher_as_its_first_process() {
    let text = fs::read_to_string(checkout().join("deploy/Dockerfile")).expect("it is there");
    assert!(text.lines().any(|line| line == "ENTRYPOINT [\"rankrun\"]"), "{text}");
}
