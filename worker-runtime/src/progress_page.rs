//! The worker's side of the progress page: each group marks its calls in memory that the launcher reads. A mark is
//! a few loads and stores and never waits, so it is always on.

use std::fs::OpenOptions;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rankrun_contract::progress_page::{
    MESSAGE, OPERATION_MASK, PAGE_BYTES, SLOT_WORDS, SLOTS, name_words, slot_flags,
};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::process_group::Operation;

/// Words of the page.
const WORDS: usize = SLOTS * SLOT_WORDS;
/// Word 0 of a slot that is taken and not yet named. The launcher does not read it.
const TAKEN: u64 = u64::MAX;

/// The page of this worker, if the launcher has made one.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProgressPage(Option<Arc<Mapping>>);

#[derive(Debug)]
struct Mapping {
    /// A word that the kernel clears in a forked child, which has a copy of this value and must not write to the page.
    owner: Mapped<AtomicU64>,
    words: Mapped<[AtomicU64; WORDS]>,
}

/// A mapping that holds one value, which begins it.
#[derive(Debug)]
struct Mapped<T>(NonNull<T>);

// SAFETY: the mapping belongs to no thread, and the value in it is shared alone.
#[expect(unsafe_code, reason = "a raw pointer to a mapping that this value owns")]
unsafe impl<T: Sync> Send for Mapped<T> {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "a raw pointer to a mapping that this value owns")]
unsafe impl<T: Sync> Sync for Mapped<T> {}

impl<T> Mapped<T> {
    fn get(&self) -> &T {
        // SAFETY: the mapping has this size, is aligned to a page, and lasts as long as this value.
        #[expect(unsafe_code, reason = "a value in a mapping")]
        unsafe {
            self.0.as_ref()
        }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: no reference into the mapping outlives this value.
        #[expect(unsafe_code, reason = "unmaps what was mapped")]
        let _ = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), size_of::<T>()) };
    }
}

/// A word that is 1 in this process and 0 in a child. Before Linux 4.14 it is 1 there too.
fn map_owner() -> Option<Mapped<AtomicU64>> {
    let (protection, length) = (ProtFlags::READ | ProtFlags::WRITE, size_of::<AtomicU64>());
    // SAFETY: a new mapping at a place of the kernel's choice; zeros are a word.
    #[expect(unsafe_code, reason = "maps memory of its own")]
    let address =
        unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), length, protection, MapFlags::PRIVATE) };
    let owner = Mapped(NonNull::new(address.ok()?.cast::<AtomicU64>())?);
    // SAFETY: the advice is about this mapping alone, and changes it in children only.
    #[expect(unsafe_code, reason = "the advice changes what a child finds")]
    let _ = unsafe { rustix::mm::madvise(owner.0.as_ptr().cast(), length, Advice::LinuxWipeOnFork) };
    owner.get().store(1, Ordering::Relaxed);
    Some(owner)
}

impl ProgressPage {
    /// Maps the file. Without one a program runs as before.
    pub(crate) fn open(path: &Path) -> Self {
        Self(Mapping::open(path).map(Arc::new))
    }

    /// A slot for a group with this name, which has it until the marks are dropped.
    pub(crate) fn marks(&self, name: &str, is_world: bool) -> CollectiveMarks {
        let slot = self.0.as_ref().and_then(|page| {
            let slot = page.take_slot(name, is_world)?;
            Some(Slot { page: Arc::clone(page), first_word: slot })
        });
        CollectiveMarks { slot, name: name.to_owned(), splits: 0 }
    }
}

impl Mapping {
    fn open(path: &Path) -> Option<Self> {
        let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOFOLLOW;
        let flags = flags.bits().cast_signed();
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).ok()?;
        let metadata = file.metadata().ok()?;
        // Access to a mapping beyond the end of its file would end the process.
        if !metadata.is_file() || metadata.size() != PAGE_BYTES as u64 {
            return None;
        }
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at a place of the kernel's choice.
        #[expect(unsafe_code, reason = "maps shared memory")]
        let address =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), PAGE_BYTES, protection, flags, &file, 0) };
        let words = Mapped(NonNull::new(address.ok()?.cast())?);
        Some(Self { owner: map_owner()?, words })
    }

    /// False in a forked child.
    fn is_owner(&self) -> bool {
        self.owner.get().load(Ordering::Relaxed) != 0
    }

    /// The first word of a slot that was free.
    fn take_slot(&self, name: &str, is_world: bool) -> Option<usize> {
        if !self.is_owner() {
            return None;
        }
        let words = self.words.get();
        let is_taken = |first: &usize| {
            words[*first].compare_exchange(0, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let first = (0..WORDS).step_by(SLOT_WORDS).find(is_taken)?;
        let counts = [0, 0, 0].into_iter().chain(name_words(name));
        for (word, value) in words[first + 1..].iter().zip(counts) {
            word.store(value, Ordering::Relaxed);
        }
        words[first].store(slot_flags(is_world), Ordering::Release);
        Some(first)
    }
}

/// The slot of one group.
#[derive(Debug)]
struct Slot {
    page: Arc<Mapping>,
    first_word: usize,
}

impl Slot {
    fn word(&self, index: usize) -> &AtomicU64 {
        &self.page.words.get()[self.first_word + index]
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.page.is_owner() {
            self.word(0).store(0, Ordering::Release);
        }
    }
}

/// Marks the calls of one group.
#[derive(Debug, Default)]
pub(crate) struct CollectiveMarks {
    slot: Option<Slot>,
    name: String,
    /// Sub-groups made so far.
    splits: u32,
}

impl CollectiveMarks {
    /// The slot, in the process that has it.
    fn own_slot(&self) -> Option<&Slot> {
        self.slot.as_ref().filter(|slot| slot.page.is_owner())
    }

    /// The group calls this operation. Of messages between two ranks only the number is marked.
    pub(crate) fn begin(&self, operation: Operation) {
        let Some(slot) = self.own_slot() else { return };
        // One thread calls the operations of a group.
        let last = slot.word(3).load(Ordering::Relaxed);
        if let Some(code) = operation_code(operation) {
            slot.word(3).store(last & !OPERATION_MASK | code, Ordering::Relaxed);
            slot.word(1).store(slot.word(2).load(Ordering::Relaxed) + 1, Ordering::Release);
        } else if is_message(operation) {
            slot.word(3).store(last.wrapping_add(MESSAGE), Ordering::Release);
        }
    }

    /// The last one is over. One that has failed counts as not called.
    pub(crate) fn end(&self, operation: Operation, is_done: bool) {
        let Some(slot) = self.own_slot() else { return };
        if operation_code(operation).is_some() {
            let (from, to) = if is_done { (1, 2) } else { (2, 1) };
            slot.word(to).store(slot.word(from).load(Ordering::Relaxed), Ordering::Release);
        } else if is_message(operation) {
            let last = slot.word(3).load(Ordering::Relaxed);
            slot.word(3).store(last.wrapping_add(MESSAGE), Ordering::Release);
        }
    }

    /// The marks of the sub-group that this split makes.
    pub(crate) fn for_subgroup(&mut self, color: u32) -> Self {
        let page = ProgressPage(self.slot.as_ref().map(|slot| Arc::clone(&slot.page)));
        self.splits += 1;
        page.marks(&format!("{}/{}/{color}", self.name, self.splits), false)
    }
}

/// The index in `OPERATIONS` of an operation that all ranks of a group call.
const fn operation_code(operation: Operation) -> Option<u64> {
    Some(match operation {
        Operation::Barrier => 0,
        Operation::Broadcast => 1,
        Operation::AllReduce => 2,
        Operation::Reduce => 3,
        Operation::ReduceScatter => 4,
        Operation::AllGather => 5,
        Operation::Scatter => 6,
        Operation::Gather => 7,
        Operation::Split => 8,
        Operation::Join | Operation::Send | Operation::Receive | Operation::Leave => return None,
    })
}

const fn is_message(operation: Operation) -> bool {
    matches!(operation, Operation::Send | Operation::Receive)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};
    use rankrun_contract::progress_page::{GroupSlot, OPERATIONS, parse_page};

    /// A page in a file of this name, and what a launcher reads of it.
    fn page(name: &str) -> (ProgressPage, impl Fn() -> Vec<GroupSlot>) {
        let path = std::env::temp_dir().join(format!("rankrun-page-{}-{name}", std::process::id()));
        std::fs::write(&path, [0; PAGE_BYTES]).unwrap();
        let page = ProgressPage::open(&path);
        let file = std::fs::File::open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        let read = move || {
            let mut bytes = [0; PAGE_BYTES];
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).unwrap();
            parse_page(&bytes)
        };
        (page, read)
    }

    fn counts(groups: &[GroupSlot]) -> Vec<(&str, u64, u64, &str)> {
        groups.iter().map(|it| (it.name.as_str(), it.called, it.finished, it.operation)).collect()
    }

    #[test]
    fn collectives_of_group_and_sub_group_are_shown_until_it_ends() {
        let (page, read) = page("groups");
        let mut marks = page.marks("default", true);
        marks.begin(Operation::AllReduce);
        marks.end(Operation::AllReduce, true);
        marks.begin(Operation::Broadcast);
        marks.end(Operation::Broadcast, false);
        marks.begin(Operation::Send);
        marks.begin(Operation::Barrier);
        let sub = marks.for_subgroup(5);
        sub.begin(Operation::Gather);
        assert_eq!(counts(&read()), [("default", 2, 1, "barrier"), ("default/1/5", 1, 0, "gather")]);
        drop(marks);
        assert_eq!(counts(&read()), [("default/1/5", 1, 0, "gather")]);
        let _again = page.marks("again", true);
        assert_eq!(counts(&read())[0], ("again", 0, 0, "barrier"));
    }

    #[test]
    fn begin_and_end_of_message_are_counted() {
        let (page, read) = page("messages");
        let marks = page.marks("default", true);
        marks.begin(Operation::AllReduce);
        marks.end(Operation::AllReduce, true);
        let counted: Vec<u64> = [Operation::Send, Operation::Receive]
            .into_iter()
            .flat_map(|operation| {
                marks.begin(operation);
                let begun = read()[0].messages;
                marks.end(operation, true);
                [begun, read()[0].messages]
            })
            .collect();
        assert_eq!(counted, [1, 2, 3, 4]);
        assert_eq!(counts(&read()), [("default", 1, 1, "all_reduce")]);
        marks.begin(Operation::Barrier);
        assert_eq!((read()[0].messages, read()[0].operation), (4, "barrier"));
    }

    #[test]
    #[expect(unsafe_code, reason = "the child calls nothing but marks and _exit")]
    fn forked_child_writes_nothing() {
        let (page, read) = page("forked");
        let marks = page.marks("default", true);
        marks.begin(Operation::AllReduce);
        // SAFETY: the child allocates nothing and ends by _exit.
        let ForkResult::Parent { child } = unsafe { fork() }.unwrap() else {
            marks.end(Operation::AllReduce, true);
            marks.begin(Operation::Barrier);
            drop(marks.slot);
            // SAFETY: the child ends here, without any handler of this process.
            unsafe { nix::libc::_exit(0) }
        };
        assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
        assert_eq!(counts(&read()), [("default", 1, 0, "all_reduce")]);
    }

    #[test]
    fn group_beyond_last_slot_is_not_shown() {
        let (page, read) = page("full");
        let all: Vec<CollectiveMarks> =
            (0..=SLOTS).map(|index| page.marks(&index.to_string(), false)).collect();
        all[SLOTS].begin(Operation::Barrier);
        assert_eq!(read().len(), SLOTS);
    }

    #[test]
    fn file_of_other_size_or_none_gives_no_page() {
        let path = std::env::temp_dir().join(format!("rankrun-page-{}-short", std::process::id()));
        std::fs::write(&path, [0; PAGE_BYTES - 1]).unwrap();
        assert!(ProgressPage::open(&path).0.is_none());
        std::fs::remove_file(&path).unwrap();
        assert!(ProgressPage::open(&path).0.is_none());
        let marks = ProgressPage::default().marks("default", true);
        marks.begin(Operation::Barrier);
        marks.end(Operation::Barrier, true);
    }

    #[test]
    fn names_of_operations_are_those_of_page() {
        let operations = [
            Operation::Barrier,
            Operation::Broadcast,
            Operation::AllReduce,
            Operation::Reduce,
            Operation::ReduceScatter,
            Operation::AllGather,
            Operation::Scatter,
            Operation::Gather,
            Operation::Split,
        ];
        for operation in operations {
            let code = usize::try_from(operation_code(operation).unwrap()).unwrap();
            assert_eq!(OPERATIONS[code], operation.to_string());
        }
    }
}
