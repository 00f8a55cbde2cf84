//! `--progress trainer`: the server for Hugging Face's Trainer. The Trainer itself is in `tests/pytorch/frameworks.rs`; here a shell
//! reports as it does.

use harness::{Launch, Name, Outcome, fixture, is_rankrun};

/// Reports step 7 and prints the answer. Then it does nothing more.
const REPORT: &str = r#"
address=${KUBEFLOW_TRAINER_SERVER_URL#http://}
port=${address#*:}
exec 3<>"/dev/tcp/127.0.0.1/${port%/}"
body='{"trainerStatus": {"progressPercentage": 12, "metrics": [{"name": "current_step", "value": "7"}]}}'
head='POST / HTTP/1.1\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s'
printf "$head" "$(cat "$KUBEFLOW_TRAINER_SERVER_TOKEN")" "${#body}" "$body" >&3
read -r answer <&3
echo "answer $answer"
exec sleep 1000
"#;

const PRINT: &str = "echo rank $RANK ${KUBEFLOW_TRAINER_SERVER_URL-none} ${no_proxy-none}";

fn with_server(workers: usize) -> Launch {
    Launch::standalone(Name::Rankrun, workers).args(["--progress", "trainer"])
}

#[track_caller]
fn only_line(outcome: &Outcome, start: &str) -> String {
    let lines = outcome.expect_exit_code(0).lines_with(start);
    let [line] = &lines[..] else { panic!("one line has `{start}`: {outcome}") };
    line.clone()
}

#[test]
fn report_of_trainer_is_heartbeat_of_rank_0() {
    if !is_rankrun() {
        return;
    }
    let launch = with_server(1).args(["--hang-timeout", "1", "--no-python", "bash", "-c", REPORT]);
    let outcome = launch.run();
    outcome.expect_exit_code(1).expect_stdout("answer HTTP/1.1 200 OK");
    outcome.expect_stderr("failed first: hang: rank 0 has made no progress for ").expect_stderr(" (step 7)");
}

#[test]
fn only_rank_0_gets_server_and_no_proxy_for_it() {
    if !is_rankrun() {
        return;
    }
    let launch = with_server(2).env("http_proxy", "http://127.0.0.1:9").env("NO_PROXY", "example.org");
    let outcome = launch.shell(PRINT).run();
    let line = only_line(&outcome, "rank 0 ");
    assert!(line.starts_with("rank 0 http://127.0.0.1:"), "{line}");
    assert!(line.ends_with("/ example.org,127.0.0.1"), "{line}");
    assert_eq!(only_line(&outcome, "rank 1 "), "rank 1 none none");
}

#[test]
fn server_of_user_stays() {
    if !is_rankrun() {
        return;
    }
    let launch = with_server(1).env("KUBEFLOW_TRAINER_SERVER_URL", "https://kubeflow").args(["-v"]);
    let outcome = launch.shell(PRINT).run();
    outcome.expect_exit_code(0).expect_stdout("rank 0 https://kubeflow none\n");
    outcome.expect_stderr(
        "`--progress trainer` does nothing: `KUBEFLOW_TRAINER_SERVER_URL` names another server",
    );
}

#[test]
fn launcher_inside_worker_does_not_inherit_server() {
    if !is_rankrun() {
        return;
    }
    let launcher = fixture("launcher-under-test");
    let inner = "--nproc-per-node 1 --no-python sh -c 'echo inner ${KUBEFLOW_TRAINER_SERVER_URL-none}'";
    let outer = "echo outer $KUBEFLOW_TRAINER_SERVER_URL";
    let line = format!("{outer}; '{}' --standalone $INNER {inner}", launcher.display());
    let outcome = with_server(1).shell(&line).run();
    assert_eq!(only_line(&outcome, "inner "), "inner none");
    let outcome = with_server(1).env("INNER", "--progress trainer").shell(&line).run();
    let own = only_line(&outcome, "inner ");
    assert!(own.starts_with("inner http://127.0.0.1:"), "{own}");
    assert_ne!(own, only_line(&outcome, "outer ").replace("outer", "inner"));
}
