//! Devices, and what is known of them: contexts, memory, streams, events, functions.

use std::alloc::Layout;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::faults::{enter, value};
use crate::launch::Function;
use crate::memory::Allocation;

pub(crate) const INVALID_VALUE: c_int = 1;
pub(crate) const OUT_OF_MEMORY: c_int = 2;
pub(crate) const NO_DEVICE: c_int = 100;
pub(crate) const INVALID_DEVICE: c_int = 101;
pub(crate) const INVALID_IMAGE: c_int = 200;
pub(crate) const INVALID_CONTEXT: c_int = 201;
pub(crate) const INVALID_HANDLE: c_int = 400;
pub(crate) const NOT_FOUND: c_int = 500;
pub(crate) const NOT_READY: c_int = 600;
pub(crate) const ILLEGAL_ADDRESS: c_int = 700;
pub(crate) const CONTEXT_IS_DESTROYED: c_int = 709;

/// What a call comes to; an error is its code.
pub(crate) type Answer<T = ()> = Result<T, c_int>;

/// A device as this process counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Device(pub(crate) usize);

/// Everything that handles stand for.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    /// How often the primary context of a device was retained.
    retained: HashMap<Device, u32>,
    /// By address.
    pub(crate) memory: BTreeMap<u64, Allocation>,
    /// Of the host.
    pub(crate) pinned: HashMap<usize, Layout>,
    pub(crate) streams: HashMap<usize, Device>,
    /// Streams that are gone.
    pub(crate) gone: HashSet<usize>,
    pub(crate) events: HashMap<usize, Device>,
    pub(crate) functions: HashMap<usize, Function>,
}

static TABLES: LazyLock<Mutex<Tables>> = LazyLock::new(Mutex::default);

thread_local! {
    static CURRENT: Cell<Option<Device>> = const { Cell::new(None) };
}

pub(crate) fn tables() -> MutexGuard<'static, Tables> {
    TABLES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A handle that nothing else has; far from the small numbers that stand for default streams.
pub(crate) fn fresh_handle() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1 << 40);
    NEXT.fetch_add(16, Ordering::Relaxed)
}

/// One call: a requested error or its own, as a code.
pub(crate) fn call(function: &str, act: impl FnOnce() -> Answer) -> c_int {
    enter(function, None).unwrap_or_else(|| act().err().unwrap_or(0))
}

/// Whether there is a machine, on which everything must be right.
pub(crate) fn is_machine() -> bool {
    value("devices").is_some()
}

/// The devices that this process sees, by their numbers on the machine; what follows an unknown one is hidden, as CUDA has it.
#[expect(clippy::disallowed_methods, reason = "a fake library has nothing but the process that opens it")]
pub(crate) fn visible() -> Vec<usize> {
    let Some(devices) = value("devices").and_then(|devices| devices.parse().ok()) else { return vec![0] };
    match std::env::var("CUDA_VISIBLE_DEVICES") {
        Err(_) => (0..devices).collect(),
        Ok(list) => list
            .split(',')
            .map_while(|number| number.trim().parse().ok().filter(|number| *number < devices))
            .collect(),
    }
}

impl Device {
    pub(crate) fn of_ordinal(ordinal: c_int) -> Answer<Self> {
        let ordinal = usize::try_from(ordinal).map_err(|_| INVALID_DEVICE)?;
        (ordinal < visible().len()).then_some(Self(ordinal)).ok_or(INVALID_DEVICE)
    }

    /// Its number on the machine.
    pub(crate) fn number(self) -> usize {
        visible().get(self.0).copied().unwrap_or(usize::MAX)
    }

    /// The handle of its primary context.
    pub(crate) fn context(self) -> usize {
        self.0 + 1
    }

    /// Creates its primary context unless a caller already retained it.
    pub(crate) fn retain(self) {
        *tables().retained.entry(self).or_default() += 1;
    }

    /// With the last owner of the context all that was in it is gone.
    pub(crate) fn release(self) -> Answer {
        let mut tables = tables();
        let owners = tables.retained.get_mut(&self).filter(|owners| **owners > 0).ok_or(INVALID_CONTEXT)?;
        *owners -= 1;
        if *owners == 0 {
            tables.memory.retain(|_, allocation| allocation.device != self);
            tables.streams.retain(|_, device| *device != self);
            tables.events.retain(|_, device| *device != self);
            tables.functions.retain(|_, function| function.device != self);
        }
        Ok(())
    }

    fn has_context(self) -> bool {
        !is_machine() || tables().retained.get(&self).is_some_and(|owners| *owners > 0)
    }
}

/// The handle of the context that is current in this thread, if any.
pub(crate) fn current_handle() -> usize {
    let any = (!is_machine()).then_some(Device(0));
    CURRENT.get().or(any).map_or(0, Device::context)
}

pub(crate) fn set_current(handle: usize) -> Answer {
    let device = match handle.checked_sub(1) {
        None => None,
        Some(ordinal) => {
            Some(Device(ordinal)).filter(|device| device.has_context()).ok_or(INVALID_CONTEXT)?.into()
        }
    };
    CURRENT.set(device);
    Ok(())
}

/// The device of the context that is current in this thread.
pub(crate) fn current() -> Answer<Device> {
    let device = current_handle().checked_sub(1).map(Device).ok_or(INVALID_CONTEXT)?;
    device.has_context().then_some(device).ok_or(CONTEXT_IS_DESTROYED)
}
