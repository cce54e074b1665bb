//! Days of the public record.

/// A day, as in `day(2019, 6, 3)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Day {
    year: u16,
    month: u8,
    day: u8,
}

/// That day.
pub(super) const fn day(year: u16, month: u8, day: u8) -> Day {
    Day { year, month, day }
}

impl Day {
    /// Its year.
    pub fn year(self) -> u16 {
        self.year
    }

    /// `2019-06`.
    pub fn month(self) -> String {
        format!("{}-{:02}", self.year, self.month)
    }

    /// Its number, counted from a day long ago (the usual conversion of a civil date).
    fn number(self) -> i64 {
        let (year, month, day) = (i64::from(self.year), i64::from(self.month), i64::from(self.day));
        // The year begins in March, so that the odd month is its last.
        let year = if month <= 2 { year - 1 } else { year };
        let in_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
        year * 365 + year / 4 - year / 100 + year / 400 + in_year
    }

    /// How many days later that day is.
    pub fn days_until(self, later: Self) -> i64 {
        later.number() - self.number()
    }

    /// How much later that day is, as one would say it.
    pub(super) fn until(self, later: Self) -> String {
        let days = self.days_until(later);
        // 30.44 days are a month; half of one is not worth a word.
        let months = (days * 100 + 1522) / 3044;
        let of = |n: i64, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        match months {
            _ if days == 0 => "less than a day".to_owned(),
            _ if days < 60 => of(days, "day"),
            ..24 => of(months, "month"),
            _ if months % 12 == 0 => of(months / 12, "year"),
            _ => format!("{}, {}", of(months / 12, "year"), of(months % 12, "month")),
        }
    }
}
