use super::*;

/// Sockets of NUMA nodes of cores of threads, in Linux's numbering: first one thread of each core, then the second
/// threads. A cache is shared by so many cores.
fn layout([sockets, nodes, cores, threads]: [u32; 4], of_cache: u32) -> CpuLayout {
    let all = sockets * nodes * cores;
    let core_of = |id: u32| id % all;
    let ids = 0..all * threads;
    let with_core = |core: u32| ids.clone().filter(move |id| core_of(*id) == core).collect::<Vec<_>>();
    let cpu = |id: u32| {
        let core = core_of(id);
        let cache = core / of_cache;
        Cpu {
            id,
            package: i32::try_from(core / (nodes * cores)).unwrap(),
            siblings: with_core(core),
            cache: ids.clone().filter(|other| core_of(*other) / of_cache == cache).collect(),
        }
    };
    let node = |id: u32| super::super::NumaNode {
        id,
        cpus: ids.clone().filter(|cpu| core_of(*cpu) / cores == id).collect(),
    };
    CpuLayout { nodes: (0..sockets * nodes).map(node).collect(), cpus: ids.clone().map(cpu).collect() }
}

/// The CPUs of each device, as ranges, or the error's text.
fn cpu_texts(binding: NumaBinding, layout: &CpuLayout, allowed: &[u32], nodes: &[u32]) -> Vec<String> {
    let bindings = Bindings { layout, allowed, nodes };
    let of = |device| match bindings.cpus(binding, device) {
        Ok(cpus) => format_ranges(&cpus),
        Err(error) => error.to_string(),
    };
    (0..nodes.len()).map(of).collect()
}

fn all(layout: &CpuLayout) -> Vec<u32> {
    layout.cpus.iter().map(|cpu| cpu.id).collect()
}

#[test]
fn four_numa_bindings_on_whole_machine() {
    use NumaBinding::{CoreComplex, Exclusive, Node, Socket};
    let one_socket = layout([1, 1, 8, 1], 4);
    let smt = layout([1, 1, 4, 2], 2);
    let two_sockets = layout([2, 1, 4, 2], 4);
    let four_nodes = layout([2, 2, 4, 1], 2);
    for (binding, layout, nodes, expected) in [
        (Node, &one_socket, vec![0, 0], vec!["0-7", "0-7"]),
        (Node, &two_sockets, vec![0, 1], vec!["0-3,8-11", "4-7,12-15"]),
        (Node, &four_nodes, vec![3, 0], vec!["12-15", "0-3"]),
        (Socket, &one_socket, vec![0], vec!["0-7"]),
        (Socket, &two_sockets, vec![1, 1], vec!["4-7,12-15", "4-7,12-15"]),
        (Socket, &four_nodes, vec![1, 2], vec!["0-7", "8-15"]),
        (Exclusive, &one_socket, vec![0, 0], vec!["0-3", "4-7"]),
        (Exclusive, &one_socket, vec![0, 0, 0], vec!["0-2", "3-5", "6-7"]),
        (Exclusive, &smt, vec![0, 0], vec!["0-1,4-5", "2-3,6-7"]),
        (Exclusive, &two_sockets, vec![1, 0, 1], vec!["4-5,12-13", "0-3,8-11", "6-7,14-15"]),
        (CoreComplex, &one_socket, vec![0, 0, 0], vec!["0-3", "4-7", "0-3"]),
        (CoreComplex, &smt, vec![0, 0], vec!["0-1,4-5", "2-3,6-7"]),
        (CoreComplex, &four_nodes, vec![1, 0, 1], vec!["4-5", "0-1", "6-7"]),
    ] {
        assert_eq!(cpu_texts(binding, layout, &all(layout), &nodes), expected, "{binding:?} {nodes:?}");
    }
}

#[test]
fn binding_uses_only_allowed_cpus() {
    use NumaBinding::{CoreComplex, Exclusive, Node, Socket};
    let smt = layout([1, 1, 4, 2], 2);
    let two_sockets = layout([2, 1, 4, 1], 2);
    let four_nodes = layout([2, 2, 2, 1], 2);
    for (binding, layout, allowed, nodes, expected) in [
        (Node, &smt, vec![1, 2, 7], vec![0], vec!["1-2,7"]),
        // A core with one permitted thread is a core.
        (Exclusive, &smt, vec![1, 2, 5, 7], vec![0, 0, 0], vec!["1,5", "2", "7"]),
        (
            Exclusive,
            &smt,
            vec![1, 5],
            vec![0, 0],
            vec!["NUMA node 0 has 1 cores that may be used here, for 2 devices"; 2],
        ),
        // The larger part of a cache first.
        (CoreComplex, &smt, vec![0, 2, 3, 6], vec![0, 0], vec!["2-3,6", "0"]),
        (
            Node,
            &two_sockets,
            vec![0, 1],
            vec![0, 1],
            vec!["0-1", "none of the CPUs of NUMA node 1 may be used here"],
        ),
        // Nodes of the socket where nothing is permitted are left out.
        (Socket, &four_nodes, vec![0, 1, 6], vec![0, 3], vec!["0-1", "6"]),
    ] {
        assert_eq!(cpu_texts(binding, layout, &allowed, &nodes), expected, "{binding:?} {allowed:?}");
    }
}

#[test]
fn binding_to_unknown_node_is_an_error() {
    for binding in NumaBinding::ALL {
        let none = CpuLayout::default();
        assert_eq!(
            cpu_texts(binding, &none, &[0], &[2]),
            ["the kernel shows no CPUs of NUMA node 2"],
            "{binding:?}"
        );
        let one = layout([1, 1, 2, 1], 1);
        let bindings = Bindings { layout: &one, allowed: &[0, 1], nodes: &[0] };
        let error = bindings.cpus(binding, 1).unwrap_err();
        assert_eq!(error, AffinityError::NoDevice { device: 1, devices: 1 });
        // A node with CPUs that have no description: each is a core and a cache.
        let bare = CpuLayout { cpus: Vec::new(), ..one };
        assert!(!cpu_texts(binding, &bare, &[0, 1], &[0])[0].is_empty());
    }
}

#[test]
fn exclusive_binding_splits_cpus_evenly_and_completely() {
    for devices in 1..=8 {
        let layout = layout([1, 1, 8, 2], 8);
        let nodes = vec![0; devices];
        let allowed = all(&layout);
        let bindings = Bindings { layout: &layout, allowed: &allowed, nodes: &nodes };
        let shares: Vec<Vec<u32>> =
            (0..devices).map(|device| bindings.cpus(NumaBinding::Exclusive, device).unwrap()).collect();
        let mut together: Vec<u32> = shares.concat();
        together.sort_unstable();
        assert_eq!(together, all(&layout), "{devices}");
        let sizes: Vec<usize> = shares.iter().map(Vec::len).collect();
        assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 2, "{sizes:?}");
    }
}

#[test]
fn cpu_numbers_are_formatted_as_ranges() {
    for (numbers, text) in
        [(vec![], ""), (vec![3], "3"), (vec![0, 1, 2, 4, 6, 7], "0-2,4,6-7"), (vec![u32::MAX], "4294967295")]
    {
        assert_eq!(format_ranges(&numbers), text);
    }
}
