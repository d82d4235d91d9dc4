"""What happens to samples, one file per kind of stage.

In come samples as :mod:`penstock.shards` reads them and values as :mod:`penstock.codecs` makes
them; out go samples for :mod:`penstock.batches`. ``stage`` explains the model: stages are values,
runs are stages at work.

    shardlist resample directory split    which shards, in which order, for whom
    read records                          shards → samples
    shuffle select rename associate map   order, choice, change
    decode extract                        bytes → values, samples → tuples
    mix repeat cache inform               several streams, endless ones, kept ones, watched ones
"""
