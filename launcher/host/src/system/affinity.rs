//! The CPUs on which this process may run, however many the machine has.
//!
//! nix's and rustix's masks have room for 1,024 CPUs, and where the kernel was built for more it refuses them
//! (sched_setaffinity(2), "Handling systems with large CPU affinity masks").
#![expect(unsafe_code, reason = "the system call has no wrapper that takes a mask of any size")]

use std::io;

/// A word of the kernel's mask.
type MaskWord = libc::c_ulong;

/// Room for 1,024 CPUs.
const FIRST_WORDS: usize = 1024 / MaskWord::BITS as usize;
/// Room for 524,288 CPUs; no kernel can be built for more than 8,192 today.
const LAST_WORDS: usize = FIRST_WORDS << 9;

/// The CPUs of the affinity mask, in ascending order.
pub(super) fn own_cpus() -> io::Result<Vec<u32>> {
    read_with(|mask| {
        // SAFETY: the kernel writes at most as many bytes as the mask has.
        let written =
            unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, size_of_val(mask), mask.as_mut_ptr()) };
        usize::try_from(written).map_err(|_| io::Error::last_os_error())
    })
}

/// Asks with ever more room until the mask fits in. `ask` says how many bytes were written.
fn read_with(ask: impl Fn(&mut [MaskWord]) -> io::Result<usize>) -> io::Result<Vec<u32>> {
    let mut mask = vec![0; FIRST_WORDS];
    loop {
        match ask(&mut mask) {
            Ok(bytes) => {
                mask.truncate(bytes.div_ceil(size_of::<MaskWord>()));
                return Ok(cpus_of(&mask));
            }
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && mask.len() < LAST_WORDS => {
                mask.resize(mask.len() * 2, 0);
            }
            Err(error) => return Err(error),
        }
    }
}

fn cpus_of(mask: &[MaskWord]) -> Vec<u32> {
    let of_word = |(first, word): (u32, &MaskWord)| {
        let word = *word;
        (0..MaskWord::BITS).filter(move |bit| word >> bit & 1 == 1).map(move |bit| first + bit)
    };
    (0..).step_by(MaskWord::BITS as usize).zip(mask).flat_map(of_word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that was built for this number of CPUs, and lets the launcher run on these.
    fn kernel(built_for: u32, cpus: &[u32]) -> impl Fn(&mut [MaskWord]) -> io::Result<usize> {
        move |mask| {
            let words = (built_for / MaskWord::BITS) as usize;
            let Some(own) = mask.get_mut(..words) else {
                return Err(io::Error::from_raw_os_error(libc::EINVAL));
            };
            own.fill(0);
            for cpu in cpus {
                own[(cpu / MaskWord::BITS) as usize] |= 1 << (cpu % MaskWord::BITS);
            }
            Ok(size_of_val(own))
        }
    }

    #[test]
    fn affinity_is_read_for_any_mask_size() {
        for (built_for, cpus) in [
            (64, vec![0, 3, 63]),
            (1024, vec![1, 64, 1023]),
            (2048, vec![0, 1024, 1300]),
            (8192, vec![0, 4095, 8191]),
        ] {
            assert_eq!(read_with(kernel(built_for, &cpus)).unwrap(), cpus, "{built_for}");
        }
    }

    #[test]
    fn affinity_error_ends_retries() {
        for refusal in [libc::EINVAL, libc::ENOSYS] {
            let error = read_with(|_| Err(io::Error::from_raw_os_error(refusal))).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(refusal));
        }
    }

    #[test]
    fn affinity_matches_proc_status() {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        assert_eq!(rankrun_core::device::affinity::format_ranges(&own_cpus().unwrap()), list.trim());
    }
}
