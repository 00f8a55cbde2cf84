//! `--device-order topology`: neighbours in rank are neighbours on the fastest link. Pure.
//!
//! The best order has the most of the fastest links between successive ranks, then the most of the next fastest, and
//! so on. Among equal orders the better link from the last rank back to the first wins, since rings close there;
//! among equal ones again the order nearest to the list. So two `NVLink` pairs 0-2 and 1-3 become 0,2,1,3.

use std::cmp::Ordering;

use crate::device::{LinkKind, Machine};

/// As many devices are searched exhaustively; the subsets of more take too long. Larger machines with links of
/// different speed are not built any more: their switches join all devices alike.
const MAX_EXACT_DEVICES: usize = 8;

/// `None` where no link between them is known.
pub(super) fn sort_by_topology(listed: &[usize], machine: &Machine) -> Option<Vec<usize>> {
    let links = Links::of(listed, machine)?;
    let path = if listed.len() <= MAX_EXACT_DEVICES { links.best_path() } else { links.greedy_path() };
    Some(path.into_iter().map(|place| listed[place]).collect())
}

/// How well each two devices of a list are joined: 0 is the slowest that occurs, 1 the next.
struct Links {
    count: usize,
    grade: Vec<u32>,
}

impl Links {
    fn of(listed: &[usize], machine: &Machine) -> Option<Self> {
        let kind = |a: usize, b: usize| {
            let (a, b) = (listed[a].min(listed[b]), listed[a].max(listed[b]));
            machine.links.iter().find(|link| (link.a, link.b) == (a, b)).map(|link| link.kind)
        };
        let count = listed.len();
        let kinds: Vec<Option<LinkKind>> =
            (0..count * count).map(|pair| kind(pair / count, pair % count)).collect();
        let mut speeds: Vec<LinkKind> = kinds.iter().copied().flatten().collect();
        if speeds.is_empty() {
            return None;
        }
        speeds.sort_by(|a, b| slower(*a, *b));
        speeds.dedup();
        let grade_of = |kind: Option<LinkKind>| {
            let place = kind.and_then(|kind| speeds.iter().position(|speed| *speed == kind));
            // An unknown link counts as slower than all known ones.
            place.map_or(0, |place| u32::try_from(place + 1).unwrap_or(u32::MAX))
        };
        Some(Self { count, grade: kinds.into_iter().map(grade_of).collect() })
    }

    fn grade(&self, a: usize, b: usize) -> u32 {
        self.grade[a * self.count + b]
    }

    /// So much that one link of a grade outweighs any number of links of the grade below. Up to 8 devices have up to
    /// 29 grades, and 9 to the power of 29 fits.
    fn weight(&self, a: usize, b: usize) -> u128 {
        let more_than_links = u128::try_from(self.count + 1).unwrap_or(u128::MAX);
        more_than_links.saturating_pow(self.grade(a, b))
    }

    /// Over sets of visited devices (Held and Karp), from each start.
    fn best_path(&self) -> Vec<usize> {
        let mut best: Option<((u128, u32), Vec<usize>)> = None;
        for start in 0..self.count {
            for (value, path) in self.paths_from(start) {
                let better = best.as_ref().is_none_or(|(known, known_path)| {
                    (value, std::cmp::Reverse(&path)) > (*known, std::cmp::Reverse(known_path))
                });
                if better {
                    best = Some((value, path));
                }
            }
        }
        best.map_or_else(|| (0..self.count).collect(), |(_, path)| path)
    }

    /// The best path from a start to each end, with its value: the sum of its links, then the grade of the link back.
    fn paths_from(&self, start: usize) -> Vec<((u128, u32), Vec<usize>)> {
        let count = self.count;
        let sets = 1_usize << count;
        // By visited devices and last device; the path is part of the value, so that equal sums keep the list's order.
        let mut best: Vec<Option<(u128, Vec<usize>)>> = vec![None; sets * count];
        best[(1 << start) * count + start] = Some((0, vec![start]));
        for set in 0..sets {
            for last in 0..count {
                let Some((sum, path)) = best[set * count + last].clone() else { continue };
                for next in (0..count).filter(|next| set & (1 << next) == 0) {
                    let sum = sum + self.weight(last, next);
                    let mut path = path.clone();
                    path.push(next);
                    let known = &mut best[(set | 1 << next) * count + next];
                    let better = known.as_ref().is_none_or(|(known_sum, known_path)| {
                        sum > *known_sum || sum == *known_sum && path < *known_path
                    });
                    if better {
                        *known = Some((sum, path));
                    }
                }
            }
        }
        let ends = best.split_off((sets - 1) * count);
        let valued = |(end, found): (usize, Option<(u128, Vec<usize>)>)| {
            found.map(|(sum, path)| ((sum, self.grade(end, start)), path))
        };
        ends.into_iter().enumerate().filter_map(valued).collect()
    }

    /// From the first of the list, always to the remaining device with the best link.
    fn greedy_path(&self) -> Vec<usize> {
        let mut path = vec![0];
        let mut unvisited: Vec<usize> = (1..self.count).collect();
        while let Some(last) = path.last().copied().filter(|_| !unvisited.is_empty()) {
            let best = unvisited.iter().map(|next| self.grade(last, *next)).max().unwrap_or(0);
            let place = unvisited.iter().position(|next| self.grade(last, *next) == best).unwrap_or(0);
            path.push(unvisited.remove(place));
        }
        path
    }
}

/// The kinds are ordered best first, but more `NVLink`s are faster than fewer.
fn slower(a: LinkKind, b: LinkKind) -> Ordering {
    match (a, b) {
        (LinkKind::Nvlink(a), LinkKind::Nvlink(b)) => a.cmp(&b),
        (a, b) => b.cmp(&a),
    }
}
