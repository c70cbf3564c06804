//! What ECI does with each field of a pod: the table behind refusals, warnings, `explain-pod` and `docs/reference/eci-fields.md`.

mod containers;
mod pods;
#[cfg(test)]
mod tests;
mod volumes;

use vk_container_group::plan::policy::{PolicyTable, Row};

/// The field policy of ECI.
pub(crate) const FIELDS: PolicyTable = PolicyTable { cloud: "ECI", rows: &ROWS };

const ROWS: [Row; COUNT] = joined();

const COUNT: usize = pods::ROWS.len() + containers::ROWS.len() + volumes::ROWS.len();

/// The rows of all parts.
const fn joined() -> [Row; COUNT] {
    let mut all = [pods::ROWS[0]; COUNT];
    let sections: [&[Row]; 3] = [&pods::ROWS, &containers::ROWS, &volumes::ROWS];
    let (mut section, mut next) = (0, 0);
    while section < sections.len() {
        let mut at = 0;
        while at < sections[section].len() {
            all[next] = sections[section][at];
            next += 1;
            at += 1;
        }
        section += 1;
    }
    all
}
