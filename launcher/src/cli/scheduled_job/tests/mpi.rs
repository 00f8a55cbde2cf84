//! Tasks of MPI launchers.

use super::{Environment, HYDRA, OPEN_MPI, place, spec, with};

#[test]
fn mpi_tasks_need_address_of_first_node() {
    let said = spec("", &OPEN_MPI).unwrap_err();
    assert!(said.contains("`OMPI_COMM_WORLD_SIZE`") && said.contains("--master-addr"), "{said}");
    let c10d = "--rdzv-backend c10d --nnodes 2";
    let said = spec(&format!("{c10d} --master-addr n1"), &OPEN_MPI).unwrap_err();
    assert!(said.contains("--rdzv-endpoint \"$(hostname)\"") && !said.contains("--master-addr"), "{said}");
    assert!(spec(&format!("{c10d} --rdzv-endpoint n1"), &OPEN_MPI).is_ok());
    let given = spec("--master-addr n1", &OPEN_MPI).unwrap();
    assert_eq!(place(&given), ("none".to_owned(), "n1".to_owned(), 29_500, 4, 3));
    let task = given.node_task.unwrap();
    assert_eq!((task.local_rank.0, task.node_rank.0, task.nodes.get()), (1, 1, 2));
    let one_host = spec("", &HYDRA).unwrap();
    assert_eq!(place(&one_host).1, "127.0.0.1");
    assert_eq!(one_host.node_task.unwrap().local_world_size.get(), 2);
    let cyclic = with(&OPEN_MPI, &[("OMPI_COMM_WORLD_LOCAL_RANK", "0")]);
    let said = spec("--master-addr n1", &cyclic).unwrap_err();
    assert!(said.contains("equal blocks"), "{said}");
    // Tasks of nodes with 2, 2 and 4 each look right to themselves.
    for (here, task, index) in [("2", "0", "0"), ("2", "3", "1"), ("4", "4", "0"), ("4", "7", "3")] {
        let unequal = [
            ("OMPI_COMM_WORLD_SIZE", "8"),
            ("OMPI_COMM_WORLD_RANK", task),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", here),
            ("OMPI_COMM_WORLD_LOCAL_RANK", index),
            ("OMPI_MCA_orte_num_nodes", "3"),
        ];
        let said = spec("--master-addr n1", &unequal).unwrap_err();
        assert!(said.contains("equal blocks"), "{said}");
    }
    assert!(spec("--master-addr n1", &with(&OPEN_MPI, &[("OMPI_MCA_orte_num_nodes", "2")])).is_ok());
}

/// The variables of a recorded environment: a line each.
fn recorded(text: &'static str) -> Environment {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('=')).collect()
}

/// The last task of two on each of two nodes is rank 3. Half of its variables are refused.
#[track_caller]
fn assert_last_of_two_by_two(environment: &[(&'static str, &'static str)], size: &str, local_sizes: &[&str]) {
    let said = spec("", environment).unwrap_err();
    assert!(said.contains(&format!("`{size}` says")) && said.contains("--master-addr"), "{said}");
    let given = spec("--master-addr n1", environment).unwrap();
    assert_eq!(place(&given), ("none".to_owned(), "n1".to_owned(), 29_500, 4, 3), "{size}");
    let task = given.node_task.unwrap();
    let numbers = (task.local_rank.0, task.local_world_size.get(), task.node_rank.0, task.nodes.get());
    assert_eq!(numbers, (1, 2, 1, 2), "{size}");
    for missing in [&[size], local_sizes] {
        let half: Environment =
            environment.iter().copied().filter(|(name, _)| !missing.contains(name)).collect();
        assert!(spec("--master-addr n1", &half).is_err(), "{missing:?}");
    }
}

#[test]
fn recorded_tasks_of_mpi_launchers_are_ranks() {
    for (text, size, local_size) in [
        (include_str!("recorded/open-mpi-4.1.4.env"), "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        (include_str!("recorded/open-mpi-5.0.11.env"), "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        (include_str!("recorded/mpich-4.0.2.env"), "PMI_SIZE", "MPI_LOCALNRANKS"),
        (include_str!("recorded/mpich-5.0.2.env"), "PMI_SIZE", "MPI_LOCALNRANKS"),
        (include_str!("recorded/intel-mpi-2021.19.env"), "PMI_SIZE", "MPI_LOCALNRANKS"),
    ] {
        assert_last_of_two_by_two(&recorded(text), size, &[local_size]);
    }
}

/// By the variables that the manual of each launcher names.
#[test]
fn tasks_of_other_mpi_launchers_are_ranks() {
    const PALS: &[(&str, &str)] = &[
        ("PALS_APID", "c5a1a0f4-3f3c-4a4e-9a0f-0f6f2b1d7e11"),
        ("PALS_DEPTH", "1"),
        ("PALS_LOCAL_RANKID", "1"),
        ("PALS_LOCAL_SIZE", "2"),
        ("PALS_NODEID", "1"),
        ("PALS_RANKID", "3"),
        ("PALS_SPOOL_DIR", "/var/run/palsd/c5a1a0f4"),
        ("PMI_LOCAL_RANK", "1"),
        ("PMI_LOCAL_SIZE", "2"),
        ("PMI_RANK", "3"),
        ("PMI_SIZE", "4"),
        ("PMI_UNIVERSE_SIZE", "4"),
    ];
    const JSM: &[(&str, &str)] = &[
        ("JSM_NAMESPACE_ID", "1"),
        ("JSM_NAMESPACE_LOCAL_RANK", "1"),
        ("JSM_NAMESPACE_LOCAL_SIZE", "2"),
        ("JSM_NAMESPACE_RANK", "3"),
        ("JSM_NAMESPACE_SIZE", "4"),
        ("OMPI_COMM_WORLD_RANK", "3"),
        ("PMIX_NAMESPACE", "1"),
        ("PMIX_RANK", "3"),
    ];
    const MVAPICH2: &[(&str, &str)] = &[
        ("MPIRUN_NPROCS", "4"),
        ("MPIRUN_RANK", "3"),
        ("MV2_COMM_WORLD_LOCAL_RANK", "1"),
        ("MV2_COMM_WORLD_LOCAL_SIZE", "2"),
        ("MV2_COMM_WORLD_RANK", "3"),
        ("MV2_COMM_WORLD_SIZE", "4"),
    ];
    for (environment, size, local_sizes) in [
        (PALS, "PMI_SIZE", &["PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"][..]),
        (JSM, "JSM_NAMESPACE_SIZE", &["JSM_NAMESPACE_LOCAL_SIZE"]),
        (MVAPICH2, "MV2_COMM_WORLD_SIZE", &["MV2_COMM_WORLD_LOCAL_SIZE"]),
    ] {
        assert_last_of_two_by_two(environment, size, local_sizes);
    }
    // A resource set with a device for each task.
    let own = [JSM, &[("CUDA_VISIBLE_DEVICES", "1")]].concat();
    assert_eq!(spec("--master-addr n1", &own).unwrap().node_task.unwrap().local_rank.0, 0);
}

#[test]
fn batch_job_names_first_host_of_mpi_tasks() {
    for (more, host) in [
        (("SLURM_JOB_NODELIST", "n[3-4]"), "n3"),
        (("LSB_MCPU_HOSTS", "h1 2 h2 2"), "h1"),
        // Tasks of `jsrun` are not on the host of the script.
        (("LSB_MCPU_HOSTS", "batch2 1 h41 2 h42 2"), "h41"),
        (("LSB_HOSTS", "h1 h1 h2 h2"), "h1"),
    ] {
        let environment = with(&OPEN_MPI, &[more, ("LSB_JOBID", "77")]);
        let (run_id, addr, port, nodes, _) = place(&spec("", &environment).unwrap());
        assert_eq!((run_id.as_str(), addr.as_str(), port, nodes), ("77", host, 24_697, 4), "{more:?}");
    }
    let other = with(&OPEN_MPI, &[("SLURM_JOB_NODELIST", "n[3-5]")]);
    assert!(spec("", &other).unwrap_err().contains("--master-addr"));
}
