//! The nodes of `srun`: a number, a range, a list, or those of the allocation.

use super::*;

const OF_ALLOCATION: &str = "the number of nodes is the allocation's";

/// The options of the converted line for the workers and the nodes.
#[track_caller]
fn assert_nodes(rows: &[(&str, &str)]) {
    for (line, options) in rows {
        let (line, command) = (format!("srun {line} python train.py"), format!("rankrun {options} train.py"));
        assert_eq!(
            command_of(&line).replace("--rdzv-backend c10d --rdzv-endpoint ", "at "),
            command,
            "{line}"
        );
    }
}

#[test]
fn nodes_of_list_are_counted() {
    assert_nodes(&[
        ("--nodelist=n[1-4] --ntasks-per-node=8", "--nproc-per-node 8 --nnodes 4 at n1:29400"),
        ("-w n[1-4] -n 32", "--nproc-per-node 8 --nnodes 4 at n1:29400"),
        ("-w n[08-10],m -n 4", "--nproc-per-node 1 --nnodes 4 at n08:29400"),
        ("-w n[1-4] -n 32 --ntasks-per-node 8", "--nproc-per-node 8 --nnodes 4 at n1:29400"),
        ("-w n[1-4] -N 2 -n 8", "--nproc-per-node 4 --nnodes 2 at n1:29400"),
        ("-w n[1-2] -N 4 -n 8", "--nproc-per-node 2 --nnodes 4 at \"$HEAD_NODE:29400\""),
        ("-w n7 --ntasks-per-node 8", "--nproc-per-node 8"),
    ]);
    let notes = notes_of("srun -w n[1-3] -n 6 python train.py");
    assert!(notes.contains("run this on each node: n1, n2, n3") && !notes.contains(OF_ALLOCATION), "{notes}");
}

#[test]
fn number_of_nodes_that_line_lacks_is_allocations() {
    for (line, options) in [
        ("--ntasks-per-node=8", "--nproc-per-node 8 --nnodes \"$SLURM_NNODES\" at \"$HEAD_NODE:29400\""),
        (
            "-w ./hosts --ntasks-per-node 8",
            "--nproc-per-node 8 --nnodes \"$SLURM_NNODES\" at \"$HEAD_NODE:29400\"",
        ),
        (
            "-w $NODELIST -n 32",
            "--total-workers 32 --nnodes \"$SLURM_NNODES\" at \"$HEAD_NODE:29400\" --node-rank \"$NODE_RANK\"",
        ),
    ] {
        assert_nodes(&[(line, options)]);
        assert!(notes_of(&format!("srun {line} python train.py")).contains(OF_ALLOCATION), "{line}");
    }
    for line in ["-n 8", "-n 16 --ntasks-per-node 8", "-N 2 --ntasks-per-node 8"] {
        assert!(!notes_of(&format!("srun {line} python train.py")).contains(OF_ALLOCATION), "{line}");
    }
}

#[test]
fn range_of_nodes_beside_number_of_tasks_is_its_maximum() {
    assert_nodes(&[
        ("-N 1-4 -n 8", "--nproc-per-node 2 --nnodes 4 at \"$HEAD_NODE:29400\""),
        ("-N 1-4 -n 8 --ntasks-per-node 4", "--nproc-per-node 2 --nnodes 4 at \"$HEAD_NODE:29400\""),
        ("-N 2-4 -n 3", "--nproc-per-node 1 --nnodes 3 at \"$HEAD_NODE:29400\""),
        ("-N 1-4 --ntasks-per-node 8", "--nproc-per-node 8 --nnodes 1:4 at \"$HEAD_NODE:29400\""),
        (
            "--nodes ${NNODES:-2} --ntasks-per-node 8",
            "--nproc-per-node 8 --nnodes ${NNODES:-2} at \"$HEAD_NODE:29400\"",
        ),
    ]);
    let notes = notes_of("srun -N 1-4 -n 8 python train.py");
    assert!(notes.contains("`-N 1-4` beside a number of tasks: this line takes 4 nodes"), "{notes}");
}
