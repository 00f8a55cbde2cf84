//! A way to the store that a test can cut.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::store::StoreServer;

/// What is between an agent and a store, and can stop to let anything through.
pub(super) struct Wall {
    pub(super) port: u16,
    /// The next bytes break the connection that they come over.
    breaks: Arc<AtomicBool>,
    is_open: Arc<AtomicBool>,
    /// The connection of this number is let through also then.
    spared: Arc<AtomicUsize>,
    /// Number of reads with bytes for the store, by the number of the connection.
    requests: Arc<Mutex<BTreeMap<usize, u32>>>,
}

impl Wall {
    /// Between this store and the clients of the wall's port.
    pub(super) fn before(store: &StoreServer) -> Self {
        Self::to(store.local_addr())
    }

    pub(super) fn to(store: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let is_open = Arc::new(AtomicBool::new(true));
        let breaks = Arc::new(AtomicBool::new(false));
        let spared = Arc::new(AtomicUsize::new(usize::MAX));
        let wall = Self {
            port,
            breaks: Arc::clone(&breaks),
            is_open: Arc::clone(&is_open),
            spared: Arc::clone(&spared),
            requests: Arc::default(),
        };
        let requests = Arc::clone(&wall.requests);
        thread::spawn(move || {
            for (number, near) in listener.incoming().map_while(Result::ok).enumerate() {
                let Ok(far) = TcpStream::connect(store) else { return };
                for (from, to, is_request) in [(&near, &far, true), (&far, &near, false)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let (is_open, spared) = (Arc::clone(&is_open), Arc::clone(&spared));
                    let breaks = Arc::clone(&breaks);
                    let requests = Arc::clone(&requests);
                    let lets = move || {
                        if is_request {
                            *requests.lock().unwrap().entry(number).or_default() += 1;
                        }
                        is_open.load(Ordering::SeqCst) || spared.load(Ordering::SeqCst) == number
                    };
                    thread::spawn(move || pass(from, to, lets, &breaks));
                }
            }
        });
        wall
    }

    /// How often a connection has had bytes for the store.
    pub(super) fn requests(&self, number: usize) -> u32 {
        self.requests.lock().unwrap().get(&number).copied().unwrap_or(0)
    }

    /// Lets nothing through any more.
    pub(super) fn closes(&self) {
        self.is_open.store(false, Ordering::SeqCst);
    }

    /// Lets everything through again.
    pub(super) fn opens(&self) {
        self.is_open.store(true, Ordering::SeqCst);
    }

    /// Lets the connection of this number through also while it is closed; they count from 0.
    pub(super) fn spares(&self, number: usize) {
        self.spared.store(number, Ordering::SeqCst);
    }

    /// Has the next bytes break the connection that they come over.
    pub(super) fn breaks(&self) {
        self.breaks.store(true, Ordering::SeqCst);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, lets: impl Fn() -> bool, breaks: &AtomicBool) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if breaks.swap(false, Ordering::SeqCst) {
            break;
        }
        if lets() && to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    for stream in [&from, &to] {
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
}
