//! Hosts that ssh starts, and one node of several.

use super::*;

/// The options in front of the program, and the words and variables of each host.
fn of_hosts(line: &str, environment: &[(&str, &str)]) -> (String, Vec<String>) {
    let world = gpus().file("/job/hosts", b"n7 slots=3\nn8 slots=2\n").file("/job/.deepspeed_env", b"A=1\n");
    let translation = translated(world, line, environment);
    let words: Vec<&str> = translation.words.iter().filter_map(|word| word.to_str()).collect();
    let node = |node: &crate::cli::other_launcher::NodeChange| {
        let variables: Vec<String> =
            node.environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
        [node.words.join(" "), variables.join(" ")].join(" ")
    };
    let end = words.iter().position(|word| *word == "--").unwrap();
    (words[..end].join(" "), translation.nodes.iter().map(node).collect())
}

#[test]
fn hosts_of_file_are_started_by_ssh() {
    let (words, nodes) = of_hosts("-H hosts x.py", &[("NCCL_DEBUG", "INFO")]);
    assert_eq!(words, "--hosts=n7,n8 --export=A,NCCL_DEBUG,PYTHONPATH");
    assert_eq!(
        nodes,
        [
            "--nproc-per-node 3 LOCAL_SIZE=3 CROSS_RANK=0 CROSS_SIZE=2",
            "--nproc-per-node 2 LOCAL_SIZE=2 CROSS_RANK=1 CROSS_SIZE=2"
        ]
    );
}

#[test]
fn filters_choose_hosts_and_their_devices() {
    for (line, hosts, expected) in [
        ("-H hosts -i n8 x.py", "n8", &["--nproc-per-node 2 LOCAL_SIZE=2 CROSS_RANK=0 CROSS_SIZE=1"][..]),
        ("-H hosts -e n7 x.py", "n8", &["--nproc-per-node 2 LOCAL_SIZE=2 CROSS_RANK=0 CROSS_SIZE=1"]),
        (
            "-H hosts -i n7:2,0@n8:1 x.py",
            "n7,n8",
            &[
                "--devices 2,0 LOCAL_SIZE=2 CROSS_RANK=0 CROSS_SIZE=2",
                "--devices 1 LOCAL_SIZE=1 CROSS_RANK=1 CROSS_SIZE=2",
            ],
        ),
        (
            "-H hosts --num_gpus 1 --num_nodes 2 x.py",
            "n7,n8",
            &[
                "--nproc-per-node 1 LOCAL_SIZE=1 CROSS_RANK=0 CROSS_SIZE=2",
                "--nproc-per-node 1 LOCAL_SIZE=1 CROSS_RANK=1 CROSS_SIZE=2",
            ],
        ),
        (
            "-H hosts --force_multi --num_nodes 1 x.py",
            "n7",
            &["--nproc-per-node 3 LOCAL_SIZE=3 CROSS_RANK=0 CROSS_SIZE=1"],
        ),
    ] {
        let (words, nodes) = of_hosts(line, &[]);
        assert!(words.starts_with(&format!("--hosts={hosts} --export")), "{line}: {words}");
        assert_eq!(nodes, expected, "{line}");
    }
}

#[test]
fn cpu_shares_of_hosts_are_their_slots() {
    let (words, nodes) = of_hosts("-H hosts x.py", &[("DS_ACCELERATOR", "cpu")]);
    assert!(words.contains("A,DS_ACCELERATOR,"), "{words}");
    let first = "--device-type cpu --nproc-per-node 3 CUDA_VISIBLE_DEVICES=0,1,2 LOCAL_SIZE=3";
    assert!(nodes[0].starts_with(first), "{nodes:?}");
}

#[test]
fn ssh_port_and_master_are_words() {
    let line = "-H hosts --ssh_port 2222 --master_addr 10.0.0.7 --master_port 1234 x.py";
    let (words, _) = of_hosts(line, &[]);
    assert!(words.starts_with("--hosts=n7,n8 --ssh=ssh -p 2222 --master-addr=10.0.0.7 --master-port=1234 "));
}

#[test]
fn node_without_ssh_is_one_of_several() {
    let world = gpus().file("/job/hosts", b"n8 slots=2\nn7 slots=3\n");
    let translation = translated(world, "-H hosts --no_ssh --node_rank 1 --master_addr n8 x.py", &[]);
    let found = words(&translation);
    assert_eq!(found, "--nnodes 2 --node-rank 1 --master-addr n8 --master-port 29500 --devices 0-2");
    let variables: Vec<_> = translation.environment.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(variables, ["LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"]);
}
